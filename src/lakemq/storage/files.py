"""Every file and directory name of a data directory, in one place. docs/files.md has what is in them."""

FORMAT = "format"
LOCK = "lock"
GITIGNORE = ".gitignore"  # in a directory that was made inside a repository
CHECKPOINT = "checkpoint"
ADMIN_TOKEN = "admin-token"  # the operators' token, if a start made one; the store leaves it alone
JOURNAL_DIRECTORY = "journal"
INDEX_DIRECTORY = "index"
QUARANTINE_DIRECTORY = "quarantine"

_JOURNAL_SUFFIX = ".journal"
_INDEX_SUFFIX = ".index"
_DIGITS = 20


def segment_name(base_position: int) -> str:
    """A segment is named by the position of its first byte."""
    return f"{base_position:0{_DIGITS}d}{_JOURNAL_SUFFIX}"


def segment_base(name: str) -> int | None:
    """The position in a segment's name; None if it is not one."""
    return _number(name, _JOURNAL_SUFFIX)


def index_file_name(first_index: int) -> str:
    """An index file is named by the first index in it."""
    return f"{first_index:0{_DIGITS}d}{_INDEX_SUFFIX}"


def index_file_first(name: str) -> int | None:
    """The index in an index file's name; None if it is not one."""
    return _number(name, _INDEX_SUFFIX)


def index_directory(topic: int, partition: int) -> str:
    """Where a partition's index files are."""
    return f"{INDEX_DIRECTORY}/{topic}/{partition}"


def _number(name: str, suffix: str) -> int | None:
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)

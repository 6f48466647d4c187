"""A message's attributes as bytes: text in Java's properties syntax, written the way Java peers write it.

The writer's output is pure ASCII, entries joined by LF in the order of the mapping. The reader takes all that the
syntax allows, raw UTF-8 included. A half of a surrogate pair, which no text can hold, is read as U+FFFD.
"""

import re
from collections.abc import Mapping

from lakemq.errors import BadParameterError, SerializationError

TAGS = "TAGS"  # what filters look at
KEYS = "KEYS"  # look-up keys
EXPIRE = "EXPIRE"  # ms since 1970, or +ms after it was stored; past it the message is a dead letter
DELIVER_AT = "DELIVER_AT"  # ms since 1970, or +ms after the broker has taken it
SPAN_MARK = "+"  # before a span: whose clock it is counted by is the broker's
DELAY_LEVEL = "DELAY_LEVEL"  # 1–18
UNIQ_ID = "UNIQ_ID"  # the producer's id, for de-duplication
TRACE = "TRACE"  # W3C traceparent
TOMBSTONE = "LAKEMQ_TOMBSTONE"  # the message has no value at all, which an empty body alone does not say

_SHORT_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_SHORT_ESCAPES_READ = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_MUST_ESCAPE = re.compile(r"[^\x20-\x7e]|[\\=:#!]")
_BLANKS = " \t\f"
_NATURAL_LINE_END = re.compile(r"\r\n|\n|\r")
_KEY_END = re.compile(r"[=: \t\f]")
_LONE_SURROGATE = re.compile(r"[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")


def encode_attributes(attributes: Mapping[str, str]) -> bytes:
    """The bytes of a mapping; an empty one is no bytes at all."""
    if not attributes:
        return b""
    lines = [f"{_escape(key).replace(' ', chr(92) + ' ')}={_escape_value(value)}" for key, value in attributes.items()]
    return "\n".join(lines).encode("ascii")


def decode_attributes(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """The mapping those bytes describe; of a key that is there twice the last one counts."""
    if not data:
        return {}
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise SerializationError(f"attributes are not UTF-8: {error}") from None
    return dict(_entry(line) for line in _logical_lines(text))


def _escape_value(value: str) -> str:
    escaped = _escape(value)
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _escape(text: str) -> str:
    return _MUST_ESCAPE.sub(_escape_one, text)


def _escape_one(match: re.Match[str]) -> str:
    character = match.group()
    if character in "\\=:#!":
        return "\\" + character
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    try:
        units = character.encode("utf-16-be").hex().upper()
    except UnicodeEncodeError:
        raise BadParameterError("an attribute holds half of a surrogate pair, which is not text") from None
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def _logical_lines(text: str) -> list[str]:
    """Lines with their continuations joined and comments and blank lines left out."""
    lines: list[str] = []
    joined: str | None = None
    for natural in _NATURAL_LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if joined is None and (not line or line[0] in "#!"):
            continue
        joined = line if joined is None else joined + line
        if _ends_with_odd_backslashes(joined):
            joined = joined[:-1] or None  # nothing yet: what follows is a new line, which may be a comment
        else:
            lines.append(joined)
            joined = None
    if joined is not None:
        lines.append(joined)
    return lines


def _ends_with_odd_backslashes(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(line: str) -> tuple[str, str]:
    end = _key_end(line)
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return _unescape(line[:end]), _unescape(rest)


def _key_end(line: str) -> int:
    start = 0
    while match := _KEY_END.search(line, start):
        if not _ends_with_odd_backslashes(line[: match.start()]):
            return match.start()
        start = match.end()
    return len(line)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while (slash := text.find("\\", at)) >= 0:
        out.append(text[at:slash])
        mark = text[slash + 1 : slash + 2]
        if mark == "u":
            out.append(_unit(text[slash + 2 : slash + 6]))
            at = slash + 6
        else:
            out.append(_SHORT_ESCAPES_READ.get(mark, mark))
            at = slash + 2
    out.append(text[at:])
    return _join_surrogates("".join(out))


def _unit(digits: str) -> str:
    if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        raise SerializationError(f"attributes hold the escape \\u{digits}, which is not four hexadecimal digits")
    return chr(int(digits, 16))


def _join_surrogates(text: str) -> str:
    whole = _LONE_SURROGATE.sub("�", text)
    return whole.encode("utf-16-be", "surrogatepass").decode("utf-16-be")

"""The operators' token: given, read from a file, or made once and kept beside the data for those who may read it."""

import contextlib
import os
import secrets
from pathlib import Path

from lakemq.errors import BadParameterError

FILE_NAME = "admin-token"  # in the data directory
_TOKEN_BYTES = 32
_CHARACTERS_MIN = 16
_CHARACTERS_MAX = 1024


def read_token(file: Path) -> str:
    """The token in that file; OSError if there is none to be read, BadParameterError if that cannot be a token."""
    with file.open("rb") as opened:
        data = opened.read(_CHARACTERS_MAX + 1)
    text = data.decode("ascii", "replace").strip()
    if not _CHARACTERS_MIN <= len(text) <= _CHARACTERS_MAX or not text.isprintable() or "�" in text or " " in text:
        raise BadParameterError(
            f"{file} holds no token: one line of {_CHARACTERS_MIN} to {_CHARACTERS_MAX} ASCII characters, no spaces"
        )
    return text


def own_token(token: str, token_file: str, data: Path) -> str:
    """The token that a broker with these settings takes; the first start makes one if none is given."""
    if token:
        return token
    if token_file:
        return read_token(Path(token_file))
    kept = data / FILE_NAME
    try:
        return read_token(kept)
    except FileNotFoundError:
        return _make(kept)


def _make(file: Path) -> str:
    """A new token in a file that nobody else can read, whole or not there at all."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    temporary = file.with_name(f"{file.name}.new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(token + "\n")
        opened.flush()
        os.fsync(descriptor)
    temporary.replace(file)
    return token

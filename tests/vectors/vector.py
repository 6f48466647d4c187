"""A vector file taken apart: its bytes, the messages in it, and what its comments say. README.md has the format.

Knows no codec: what is read here is all there is to the file.
"""

from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parent
_MESSAGE_BEGINS, _MESSAGE_ENDS = "# MESSAGE {", "# }"


@dataclass(frozen=True)
class Vector:
    """`messages` are the parts of `data` that stand between `# MESSAGE {` and `# }`."""

    name: str
    data: bytes
    messages: tuple[bytes, ...]
    lines: tuple[tuple[bytes, str], ...]  # the bytes of each line and the comment behind them


def load(name: str) -> Vector:
    """The vector of that name: a path below this directory, without `.txt`."""
    lines: list[tuple[bytes, str]] = []
    messages: list[bytes] = []
    begin: int | None = None
    for line in (DIRECTORY / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line == _MESSAGE_BEGINS:
            begin = len(lines)
        elif line == _MESSAGE_ENDS:
            messages.append(b"".join(data for data, _ in lines[begin:]))
            begin = None
        elif line and not line.startswith("#"):
            digits, _, comment = line.partition("  # ")
            lines.append((bytes.fromhex(digits), comment))
    assert begin is None, f"{name}: a message does not end"
    return Vector(name, b"".join(data for data, _ in lines), tuple(messages), tuple(lines))


def names(folder: str) -> list[str]:
    """All vectors right in that folder."""
    return sorted(f"{folder}/{path.name.removesuffix('.txt')}" for path in (DIRECTORY / folder).glob("*.txt"))

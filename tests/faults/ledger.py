"""The ledger: lines in which a writer says what became of its messages, kept outside of the file system under test.

    begun RUN PID                                     the store is open
    written TOPIC PARTITION FIRST COUNT RUN SEQUENCE   write() has returned: survives the process (ACK_WRITE)
    acked TOPIC PARTITION FIRST COUNT RUN SEQUENCE     the sync has returned: survives a power cut (ACK_FLUSH)
    refused TOPIC PARTITION COUNT RUN SEQUENCE         an error said so: must never appear
    note TEXT · failed TEXT · closed                  what else there is to tell

COUNT messages have consecutive indexes from FIRST and consecutive sequences from SEQUENCE. One system call writes one
line, and each ends with a full stop: a kill may cut a line short even so, where it crosses a page, and a line without
its full stop was never said.
"""

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from .content import Name

Place = tuple[int, int]
"""(topic, partition)."""


_END = " ."


class LedgerPen:
    """Writes lines, each with one system call and no buffer in between."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        os.write(self._fd, b"\n")  # the writer before may have been cut off in its last line

    def line(self, *words: object) -> None:
        """Say one thing; when this returns it is said, whatever happens to this process."""
        data = (" ".join(map(str, words)) + _END + "\n").encode()
        assert os.write(self._fd, data) == len(data)

    def close(self) -> None:
        os.close(self._fd)


@dataclass
class Ledger:
    """What was said so far. Indexes map to the message that was promised there."""

    acked: dict[Place, dict[int, Name]] = field(default_factory=lambda: defaultdict(dict))
    written: dict[Place, dict[int, Name]] = field(default_factory=lambda: defaultdict(dict))
    refused: set[Name] = field(default_factory=set)
    seen: dict[Place, list[Name]] = field(default_factory=lambda: defaultdict(list))
    """What a check has read: from then on it is promised like what was acked."""
    runs: int = 0
    pid: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_closed: bool = False
    contradictions: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By level: an index that was promised to two messages."""
    _read_bytes: int = 0

    def read(self, path: str | Path, *, until: int | None = None, is_void: bool = False) -> "Ledger":
        """Take in the lines that are new in that file, up to a size; `is_void`: no promise in them counts."""
        try:
            with open(path, "rb") as file:
                file.seek(self._read_bytes)
                data = file.read() if until is None else file.read(until - self._read_bytes)
        except FileNotFoundError:
            return self
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode().splitlines():
            if line.endswith(_END) and not (is_void and line.startswith(("acked", "written"))):
                self._take(line.removesuffix(_END))
        return self

    def acked_count(self) -> int:
        return sum(map(len, self.acked.values()))

    def written_count(self) -> int:
        return sum(map(len, self.written.values()))

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "acked" | "written":
                topic, partition, first, count, run, sequence = map(int, rest.split())
                promised = (self.acked if word == "acked" else self.written)[topic, partition]
                for nth in range(count):
                    name = Name(run, topic, partition, sequence + nth)
                    before = promised.get(first + nth, name)
                    if before != name:
                        self.contradictions[word].append(f"{topic}/{partition} index {first + nth}: {before}, {name}")
                    promised[first + nth] = name
            case "refused":
                topic, partition, count, run, sequence = map(int, rest.split())
                self.refused |= {Name(run, topic, partition, sequence + nth) for nth in range(count)}
            case "begun":
                run, self.pid = map(int, rest.split())
                self.runs = max(self.runs, run)
                self.is_closed = False
            case "failed":
                self.failures.append(rest)
            case "note":
                self.notes.append(rest)
            case "closed":
                self.is_closed = True
            case _:
                raise ValueError(f"not a line of a ledger: {line!r}")

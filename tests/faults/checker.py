"""Opens a store, which recovers it, reads everything and holds it against the ledger.

    python -m tests.faults.checker DIRECTORY LEDGER [--level written]

I01: what was promised is at its index, with its bytes. I02: no hole, no repeat; what a check has read is promised from
then on. I03: every message is one that was sent, whole, in its partition, and none that was refused. I04: none twice.
Beyond what is promised a tail may be missing, never a middle: sequences of one run and partition have no gap.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from lakemq.envelope import unpack_all
from lakemq.errors import LakeMQError
from lakemq.message import BatchMessage, Message
from lakemq.storage.partition_group import PartitionGroup
from lakemq.storage.recovery import open_group
from lakemq.world.disk import RealDisk

from .content import Bodies, Name
from .ledger import Ledger, Place
from .writer import SEED, small_config

PROBLEMS_MAX = 20
_FETCH_INDEXES = 500
_BAD_WORDS = ("not sound", "made again", "not usable", "outside of", "damaged")
_LOOK_BACK = 30  # how much of what was already checked a short check reads again


@dataclass
class Report:
    """What a check found. `ok` if nothing is wrong."""

    messages: int = 0  # read and compared
    stored: int = 0
    acked: int = 0  # promised by a sync, and there
    lost: int = 0  # promised and not there, or something else there
    notes: list[str] = field(default_factory=list)  # recovery's
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def add(self, problem: str) -> None:
        """Note a problem; beyond a number nobody reads them."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def __str__(self) -> str:
        text = f"{self.messages} messages read of {self.stored}, {self.acked} acked, {self.lost} lost"
        return "\n  ".join([text, *self.problems])


def check_directory(
    directory: str,
    ledger: Ledger,
    *,
    level: str = "acked",
    is_whole: bool = True,
    is_closing: bool = False,
    seed: int = SEED,
    segment_bytes: int = 1 << 20,
) -> Report:
    """Recover the store and check it; `is_closing` leaves it in peace, else it is left as it is."""
    report = Report()
    try:
        disk = RealDisk(directory)
        disk.make_dir("")  # the first writer may have been too short-lived for that
        group = open_group(disk, small_config(segment_bytes))
    except Exception as error:
        report.add(f"recovery: {type(error).__name__}: {error}")
        _close_files_below(directory)
        return report
    report.notes = list(group.notes)
    ledger.notes += [f"recovered: {note}" for note in group.notes]
    try:
        check(group, ledger, report, level=level, is_whole=is_whole, bodies=Bodies(seed))
        if is_closing:
            group.close()
    except Exception as error:
        report.add(f"reading: {type(error).__name__}: {error}")
    finally:
        group.abandon()
    return report


def complaints(ledger: Ledger) -> list[str]:
    """What recoveries said that they should have had no reason to, where nothing but a crash has happened."""
    return [note for note in ledger.notes if note.startswith("recovered") and any(word in note for word in _BAD_WORDS)]


def _close_files_below(directory: str) -> None:
    """A start that failed ends its process, which closes everything; here the process goes on and must unmount."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(directory):
                os.close(int(name))
        except OSError:  # the one of the listing itself
            continue


def check(group: PartitionGroup, ledger: Ledger, report: Report, *, level: str, is_whole: bool, bodies: Bodies) -> None:
    """Hold all that can be read against what was promised; not `is_whole`: only what no check has read yet."""
    for one in ("acked", "written") if level == "written" else ("acked",):
        for text in ledger.contradictions[one]:
            report.lost += 1
            report.add(f"I02: two messages {one} at {text}")
    if group.damage:
        report.add(f"damage where there was none: {group.damage}")
    for place in sorted({*group.partitions(), *ledger.acked, *ledger.written, *ledger.seen}):
        _check_place(group, place, ledger, report, level, is_whole, bodies)


def _check_place(
    group: PartitionGroup,
    place: Place,
    ledger: Ledger,
    report: Report,
    level: str,
    is_whole: bool,
    bodies: Bodies,
) -> None:
    seen = ledger.seen[place]
    start = 0 if is_whole else max(len(seen) - _LOOK_BACK, 0)
    found = seen[:start]
    visible = group.visible_index(*place)
    if group.next_index(*place) != visible:
        report.add(f"{place}: next index {group.next_index(*place)} is not the visible one {visible} after recovery")
    if visible and group.first_index(*place) != 0:
        report.add(f"I02: {place}: the first index is {group.first_index(*place)}")
    try:
        for message in read_messages(group, place, min(start, visible), visible):
            found.append(_check_message(message, place, len(found), ledger, report, bodies))
            report.messages += 1
    except LakeMQError as error:
        report.add(f"I01: {place}: index {len(found)} of {visible} cannot be read: {type(error).__name__}: {error}")
    if len(found) != visible:
        report.add(f"I02: {place}: {len(found)} messages are readable, {visible} are visible")
    report.stored += len(found)
    _check_order(place, found, ledger, report)
    _check_promises(place, found, start, ledger, report, level)
    ledger.seen[place] = found


def read_messages(group: PartitionGroup, place: Place, index: int, end: int) -> Iterator[Message]:
    """Every message of a partition from `index` up to `end`, one by one, batches opened."""
    wanted = index
    while index < end:
        slices = group.read(*place, index, _FETCH_INDEXES)
        if not slices:
            return
        for part in slices:
            for value in unpack_all(part.messages):
                for message in value.messages() if isinstance(value, BatchMessage) else [value]:
                    if message.index >= wanted:
                        yield message
        index = slices[-1].next_index


def _check_message(message: Message, place: Place, index: int, ledger: Ledger, report: Report, bodies: Bodies) -> Name:
    name = bodies.name_of(message.body)
    if message.index != index:
        report.add(f"I02: {place}: index {message.index} where {index} belongs")
    if name is None:
        report.add(f"I03: {place}: index {index} holds {len(message.body)} bytes that nobody sent")
        return Name(0, *place, 0)
    if (name.topic, name.partition) != place or message.partition != place[1] or message.term != name.run:
        report.add(f"I03: {place}: index {index} holds {name}, partition {message.partition}, term {message.term}")
    if name in ledger.refused:
        report.add(f"I03: {place}: index {index} holds {name}, which was refused")
    return name


def _check_order(place: Place, found: list[Name], ledger: Ledger, report: Report) -> None:
    if len(set(found)) != len(found):
        report.add(f"I04: {place}: {len(found) - len(set(found))} messages are there more than once")
    run, sequence = 0, 0  # the next one expected
    for index, name in enumerate(found):
        if name.run > run:
            run, sequence = name.run, 0
        while name.sequence > sequence and Name(run, *place, sequence) in ledger.refused:
            sequence += 1
        if name.run < run or name.sequence != sequence:
            report.add(f"I02: {place}: index {index} holds {name} where sequence {sequence} of run {run} belongs")
        run, sequence = name.run, name.sequence + 1


def _check_promises(place: Place, found: list[Name], start: int, ledger: Ledger, report: Report, level: str) -> None:
    promises = [("acked", ledger.acked[place]), ("seen before", dict(enumerate(ledger.seen[place])))]
    if level == "written":
        promises.append(("written", ledger.written[place]))
    for what, promised in promises:
        for index, name in promised.items():
            if index < start:
                continue
            if index >= len(found) or found[index] != name:
                report.lost += 1
                there = found[index] if index < len(found) else f"nothing, the end is {len(found)}"
                report.add(f"I01: {place}: index {index} was {what}: {name}; there is {there}")
    report.acked += sum(index < len(found) and found[index] == name for index, name in ledger.acked[place].items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("ledger")
    parser.add_argument("--level", choices=("acked", "written"), default="acked")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--segment-bytes", type=int, default=1 << 20)
    options = parser.parse_args()
    report = check_directory(
        options.directory,
        Ledger().read(options.ledger),
        level=options.level,
        seed=options.seed,
        segment_bytes=options.segment_bytes,
    )
    sys.stdout.write(f"{report}\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())

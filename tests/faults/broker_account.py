"""What producers and consumers were promised by a broker, and whether it is kept: the books of its fault tests.

I01: what was acked is at its index, with its bytes. I02: no hole, no repeat, one payload per index, whoever reads it.
I03: nothing but what was sent. I04: no more copies than attempts, one where the message has a UNIQ_ID. I05, I06: an ack
index is at least what was acked and at most what was asked for. I10: of one producer and partition, what is there for
the first time comes in the order of sending and has no gap but for what was refused.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from lakemq.envelope import unpack_all
from lakemq.message import BatchMessage
from lakemq.wire.consume import FetchPartitionMessage, PartitionFetch, TopicPartitionFetch
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import FetchRange, PartitionRange, TopicTimes

from .broker_link import Link
from .content import Bodies, Name

Place = tuple[int, int]
"""(topic, partition)."""

PROBLEMS_MAX = 20
AUDITOR = "auditor"
UNKNOWN = frozenset({3, 4, 91, 101, 108, 109, 111, 112, 113, 141})
_LOOK_BACK = 30
_FETCH_COUNT = 500
_SYNC_SECONDS_MAX = 2.0


def topic_name(number: int) -> str:
    return f"topic-{number}"


@dataclass
class Account:
    """Everything that was sent, promised, read and acked, over all lives of a broker."""

    bodies: Bodies = field(default_factory=lambda: Bodies(20_260))
    attempts: Counter[Name] = field(default_factory=Counter)
    unique: set[Name] = field(default_factory=set)  # sent with a UNIQ_ID
    promised: dict[Place, dict[int, Name]] = field(default_factory=lambda: defaultdict(dict))
    refusals: Counter[Name] = field(default_factory=Counter)  # attempts that failed for good
    coded: set[Name] = field(default_factory=set)  # got a code other than 0: there may be a gap
    codes: Counter[int] = field(default_factory=Counter)
    seen: dict[Place, list[Name]] = field(default_factory=lambda: defaultdict(list))  # by a check
    acked: Counter[tuple[str, Place]] = field(default_factory=Counter)  # an ack index may not be below
    asked: Counter[tuple[str, Place]] = field(default_factory=Counter)  # nor above
    acked_levels: Counter[str] = field(default_factory=Counter)
    delivered: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)
    unknown_codes: frozenset[int] = UNKNOWN  # after any other code the message must not be there

    def add(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    # --- while it runs -----------------------------------------------------------------------------------------------

    def promise(self, place: Place, index: int, names: Iterable[Name], level: str) -> None:
        """Code 0 came back with that index for the first of them."""
        promised = self.promised[place]
        for nth, name in enumerate(names):
            before = promised.get(index + nth, name)
            if before != name and index >= 0:
                self.lost += 1
                self.add(f"I02: {place}: index {index + nth} was promised to {before} and to {name}")
            promised[index + nth] = name
            self.acked_levels[level] += 1

    def refuse(self, names: Iterable[Name], code: int) -> None:
        """That code came back."""
        for name in names:
            self.coded.add(name)
            self.codes[code] += 1
            if code not in self.unknown_codes:
                self.refusals[name] += 1

    def open_block(self, place: Place, block: MessageBlock) -> list[tuple[int, Name]]:
        """(index, name) of every message, batches opened; what nobody sent is a problem."""
        found = []
        for value in unpack_all(block.joined()) if block.count else ():
            for message in value.messages() if isinstance(value, BatchMessage) else [value]:
                name = self.bodies.name_of(message.body)
                if name is None:
                    self.add(f"I03: {place}: index {message.index} holds {len(message.body)} bytes that nobody sent")
                    name = Name(0, 0, 0, 0)
                elif (name.topic, name.partition) != place or message.partition != place[1]:
                    self.add(f"I03: {place}: index {message.index} holds {name}, partition {message.partition}")
                found.append((message.index, name))
        return found

    def deliver(self, app: str, place: Place, found: list[tuple[int, Name]], floor: int) -> None:
        """A consumer got these; `floor` is what was acked when it asked."""
        promised = self.promised[place]
        for index, name in found:
            before = promised.get(index, name)
            if before != name:
                self.lost += 1
                self.add(f"I02: {app} got {name} at {place} index {index}, where {before} was before")
            promised[index] = name  # what was read never vanishes
        self.delivered += len(found)
        indexes = [index for index, _ in found]
        if indexes != list(range(indexes[0], indexes[0] + len(indexes))):
            self.add(f"I02: {app} got the indexes {indexes} of {place} in one lot")
        if not floor <= indexes[-1]:
            self.add(f"I05: {app} got {place} up to {indexes[-1]}, but {floor} was acked before it asked")
        if indexes[0] > self.asked[app, place]:
            self.add(f"I06: {app} got {place} from {indexes[0]}, but asked to ack up to {self.asked[app, place]} only")

    # --- afterwards --------------------------------------------------------------------------------------------------

    async def check(self, port: int, topics: Iterable[int], apps: Iterable[str], *, is_whole: bool) -> None:
        """Read what the broker has and hold it against the books; not `is_whole`: what no check has read yet."""
        link = await Link.open(port, AUDITOR, *map(topic_name, topics))
        try:
            for number in topics:
                for one in await self._settled_ranges(link, number):
                    await self._check_place(link, (number, one.partition), one, is_whole)
            for app in apps:
                own = await Link.open(port, app)
                try:
                    for number in topics:
                        for one in await ranges_of(own, number, app):
                            self._check_ack(app, (number, one.partition), one)
                finally:
                    own.drop()
        finally:
            link.drop()
        if is_whole:
            self._check_all()

    async def _settled_ranges(self, link: Link, number: int) -> list[PartitionRange]:
        """How far each partition reaches; what was only written is visible with the next sync, which may take a bit."""
        deadline = time.monotonic() + _SYNC_SECONDS_MAX
        while True:
            told = await ranges_of(link, number, AUDITOR)
            ends = [max(self.promised[number, one.partition], default=-1) for one in told]
            is_late = time.monotonic() > deadline
            if is_late or all(one.visible_index > end for one, end in zip(told, ends, strict=True)):
                return told
            await asyncio.sleep(0.01)

    async def _check_place(self, link: Link, place: Place, told: PartitionRange, is_whole: bool) -> None:
        seen = self.seen[place]
        start = 0 if is_whole else max(len(seen) - _LOOK_BACK, 0)
        found = seen[:start]
        if told.first_index > 0:
            self.add(f"I02: {place}: the first index is {told.first_index}")
        while len(found) < told.visible_index:
            wish = PartitionFetch(place[1], _FETCH_COUNT, len(found))
            ack = await link.ask(FetchPartitionMessage((TopicPartitionFetch(topic_name(place[0]), (wish,)),), AUDITOR))
            one = ack.topics[0].partitions[0]
            lot = self.open_block(place, one.messages)
            # A batch comes whole, even if only its end was asked for.
            lot = [(index, name) for index, name in lot if index >= len(found)]
            if one.code or not lot:
                self.lost += told.visible_index - len(found)
                self.add(f"I01: {place}: index {len(found)} of {told.visible_index} gives code {one.code}, nothing")
                break
            for index, name in lot:
                if index != len(found):
                    self.add(f"I02: {place}: index {index} where {len(found)} belongs")
                found.append(name)
        for what, known in (("seen", enumerate(seen[start:], start)), ("promised", self.promised[place].items())):
            for index, name in known:
                if index < start:
                    continue
                there = found[index] if index < len(found) else f"nothing, the end is {len(found)}"
                if there != name:
                    self.lost += 1
                    self.add(f"I01: {place}: index {index} was {what}: {name}; there is {there}")
        self.seen[place] = found

    def _check_ack(self, app: str, place: Place, told: PartitionRange) -> None:
        low, high = self.acked[app, place], self.asked[app, place]
        if not low <= told.ack_index <= high:
            self.add(f"I05: {app} stands at {told.ack_index} of {place}; {low} was acked, {high} asked for")
        self.acked[app, place] = max(low, told.ack_index)

    def _check_all(self) -> None:
        """Copies and order, over the whole log."""
        copies: Counter[Name] = Counter()
        for place, names in self.seen.items():
            next_sequence: Counter[int] = Counter()
            for index, name in enumerate(names):
                copies[name] += 1
                if copies[name] > 1:
                    continue
                expected = next_sequence[name.run]
                while expected < name.sequence and Name(name.run, *place, expected) in self.coded:
                    expected += 1
                if name.sequence != expected and Name(name.run, *place, name.sequence) not in self.coded:
                    self.add(f"I10: {place}: index {index} holds {name} where sequence {expected} belongs")
                next_sequence[name.run] = max(expected, name.sequence + 1)
        for name, count in copies.items():
            allowed = self.attempts[name] - self.refusals[name]
            if name in self.unique:
                allowed = min(allowed, 1)
            if count > allowed:
                self.add(f"I04: {name} is there {count} times; {self.attempts[name]} attempts, {allowed} could be")


async def ranges_of(link: Link, number: int, app: str) -> list[PartitionRange]:
    """How far each partition of a topic reaches, and where the app stands."""
    ack = await link.ask(FetchRange((TopicTimes(topic_name(number)),), app))
    (topic,) = ack.topics
    assert topic.code == 0, f"FETCH_RANGE of {topic_name(number)}: code {topic.code}"
    assert all(one.code == 0 for one in topic.partitions), topic
    return list(topic.partitions)

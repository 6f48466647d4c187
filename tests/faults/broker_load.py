"""Producers and consumers of every kind at work on one broker, all in one loop, with books on what they were told.

Some producers give up what a cut leaves unknown and begin anew under another name; others send it again, in order; one
gives its messages a UNIQ_ID. Consumers ack what they get, at times only half of it at first.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from lakemq.envelope import pack, unpack_all
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.wire.consume import (
    CommitAck,
    FetchTopicMessage,
    MessageAck,
    PartitionAcks,
    TopicAcks,
    TopicFetch,
)
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce

from .broker_account import Account, Place, topic_name
from .broker_link import ACK_FLUSH, ACK_NO, ACK_RECEIVE, ACK_WRITE, CutError, Link, RefusedError
from .content import Name

TOPICS = (1, 2)
PARTITIONS = 4
APPS = ("shop", "billing")
PRODUCER_APP = "sender"
_LEVELS = {ACK_FLUSH: "flush", ACK_WRITE: "write", ACK_RECEIVE: "receive", ACK_NO: "no"}
_runs = count(1)


@dataclass(frozen=True)
class Style:
    """How a producer sends."""

    level: int
    window: int = 1  # requests under way
    shape: str = "single"  # or array, batch, topics
    partitions: tuple[int, ...] = (0,)
    sends_again: bool = False
    is_unique: bool = False


STYLES = (
    Style(ACK_FLUSH, window=1, partitions=(0, 1)),
    Style(ACK_FLUSH, window=16, partitions=(1,), sends_again=True),
    Style(ACK_WRITE, window=32, partitions=(1,)),
    Style(ACK_WRITE, window=8, partitions=(2,), sends_again=True),
    Style(ACK_FLUSH, window=4, shape="array", partitions=(2, 3)),
    Style(ACK_WRITE, window=4, shape="batch", partitions=(0, 2, 3), sends_again=True),
    Style(ACK_WRITE, window=3, shape="topics", partitions=(0, 3)),
    Style(ACK_FLUSH, window=4, partitions=(3,), sends_again=True, is_unique=True),
    Style(ACK_RECEIVE, window=8, partitions=(0,)),
)


@dataclass
class Parcel:
    """Messages of one topic and partition that travel in one request."""

    place: Place
    names: list[Name]
    is_batch: bool
    packed: bytes
    message_count: int


@dataclass
class Producer:
    """One producer, over all its connections."""

    style: Style
    topic: int
    account: Account
    rng: Random
    run: int = 0
    sequences: dict[Place, int] = field(default_factory=dict)
    again: deque[list[Parcel]] = field(default_factory=deque)  # unknown, in the order of sending
    answered: int = 0

    async def work(self, port: int) -> None:
        """Send until the connection ends, or this is cancelled."""
        if not self.run or not self.style.sends_again:
            self.run, self.sequences = next(_runs), {}
        link = await Link.open(port, PRODUCER_APP)
        under_way: dict[asyncio.Future[Any], list[Parcel]] = {}
        try:
            while link.is_open:
                while len(under_way) < self.style.window:
                    parcels = self.again.popleft() if self.again else self._make()
                    under_way[self._send(link, parcels)] = parcels
                    if self.rng.random() < 0.3:
                        await asyncio.sleep(0)  # so that requests come in runs of any length
                done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for future in [future for future in under_way if future in done]:
                    if future.exception() is not None:
                        return
                    self._settle(under_way.pop(future), *future.result())
        finally:
            unknown = []
            for future, parcels in under_way.items():
                if future.done() and not future.cancelled() and future.exception() is None:
                    self._settle(parcels, *future.result())
                else:
                    unknown.append(parcels)
            if self.style.sends_again:
                self.again.extendleft(reversed(unknown))
            link.drop()

    def _make(self) -> list[Parcel]:
        topics = TOPICS if self.style.shape == "topics" else (self.topic,)
        return [self._parcel(topic, self.rng.choice(self.style.partitions)) for topic in topics]

    def _parcel(self, topic: int, partition: int) -> Parcel:
        place = topic, partition
        size = 1 if self.style.shape == "single" else self.rng.choice((1, 2, 3, 7))
        first = self.sequences.get(place, 0)
        self.sequences[place] = first + size
        names = [Name(self.run, topic, partition, first + nth) for nth in range(size)]
        bodies = [self.account.bodies.make(name) for name in names]
        if self.style.shape == "batch":
            items = tuple(BatchItem(body) for body in bodies)
            return Parcel(place, names, True, pack(BatchMessage(items=items, partition=partition, app=PRODUCER_APP)), 1)
        attributes: dict[str, str] = {}
        packed = []
        for name, body in zip(names, bodies, strict=True):
            if self.style.is_unique:
                self.account.unique.add(name)
                attributes = {"UNIQ_ID": "-".join(map(str, name))}
            packed.append(pack(Message(body=body, partition=partition, app=PRODUCER_APP, attributes=attributes)))
        return Parcel(place, names, False, b"".join(packed), len(packed))

    def _send(self, link: Link, parcels: list[Parcel]) -> "asyncio.Future[Any]":
        level = self.style.level
        entries = []
        for parcel in parcels:
            for name in parcel.names:
                self.account.attempts[name] += 1
            block = MessageBlock(parcel.message_count, (parcel.packed,))
            entries.append(TopicProduce(topic_name(parcel.place[0]), "", 20_000, level, block))
        # The stronger of header and body counts.
        header_level = self.rng.choice((level, ACK_NO, ACK_RECEIVE)) if level != ACK_RECEIVE else level
        return link.send(ProduceMessage(tuple(entries), PRODUCER_APP), header_level)

    def _settle(self, parcels: list[Parcel], header: Any, ack: Any) -> None:
        self.answered += 1
        if ack is None:
            self._refuse(parcels, header.status)
            return
        refused = []
        for parcel, told in zip(parcels, ack.topics, strict=True):
            if told.code:
                refused.append((parcel, told.code))
                continue
            if len(told.results) != parcel.message_count:
                self.account.add(f"{parcel.message_count} messages got {told}")
            if self.style.level == ACK_RECEIVE:
                continue
            self._promise(parcel, told.results)
        for parcel, code in refused:
            self._refuse([parcel], code)

    def _promise(self, parcel: Parcel, results: Any) -> None:
        level = _LEVELS[self.style.level]
        if {one.partition for one in results} != {parcel.place[1]} or min(one.index for one in results) < 0:
            self.account.add(f"{parcel.names[0]} got {results}")
        elif parcel.is_batch:
            self.account.promise(parcel.place, results[0].index, parcel.names, level)
        else:
            for name, one in zip(parcel.names, results, strict=True):
                self.account.promise(parcel.place, one.index, [name], level)

    def _refuse(self, parcels: list[Parcel], code: int) -> None:
        for parcel in parcels:
            self.account.refuse(parcel.names, code)
        if self.style.sends_again and code in (3, 91, 101, 108, 109):
            self.again.append(parcels)


@dataclass
class Consumer:
    """One consumer, over all its connections."""

    app: str
    topic: int
    account: Account
    rng: Random
    ack_timeout_ms: int = 60_000

    async def work(self, port: int) -> None:
        """Receive and ack until the connection ends, or this is cancelled."""
        name = topic_name(self.topic)
        link = await Link.open(port, self.app, name)
        try:
            while link.is_open:
                floors = {
                    partition: self.account.acked[self.app, (self.topic, partition)] for partition in range(PARTITIONS)
                }
                wish = TopicFetch(name, self.rng.choice((1, 5, 30, 200)))
                ack = await link.ask(FetchTopicMessage((wish,), self.app, self.ack_timeout_ms, 300))
                block = ack.topics[0].messages
                if not block.count:
                    continue
                (partition,) = {value.partition for value in unpack_all(block.joined())}
                place = self.topic, partition
                found = self.account.open_block(place, block)
                self.account.deliver(self.app, place, found, floors[partition])
                # A batch comes whole even if a part of it is acked already.
                await self._ack(link, place, [index for index, _ in found])
        finally:
            link.drop()

    async def _ack(self, link: Link, place: Place, indexes: list[int]) -> None:
        cut = self.rng.randrange(1, len(indexes)) if len(indexes) > 1 and self.rng.random() < 0.2 else len(indexes)
        for part in (indexes[:cut], indexes[cut:]):
            if not part:
                continue
            key = self.app, place
            self.account.asked[key] = max(self.account.asked[key], part[-1] + 1)
            acks = tuple(MessageAck(place[1], index, 0) for index in part)
            command = CommitAck((TopicAcks(topic_name(place[0]), (PartitionAcks(place[1], acks),)),), self.app)
            told = (await link.ask(command)).topics[0].partitions[0]
            if told.code == 0:
                self.account.acked[key] = max(self.account.acked[key], part[-1] + 1)
            else:
                self.account.codes[told.code] += 1


class Load:
    """All of them, at work on a broker until they are told to stop or it is gone."""

    def __init__(
        self, seed: int, styles: tuple[Style, ...] = STYLES, consumers: int = 3, account: Account | None = None
    ) -> None:
        self.account = account or Account()
        self.producers = [
            Producer(style, TOPICS[number % 2], self.account, Random(f"{seed} producer {number}"))
            for number, style in enumerate(styles)
        ]
        self.consumers = [
            Consumer(APPS[number % 2], TOPICS[number // 2 % 2], self.account, Random(f"{seed} consumer {number}"))
            for number in range(consumers)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self.counted: dict[Place, int] = {}  # for those who look at what is new

    @property
    def answered(self) -> int:
        return sum(one.answered for one in self.producers)

    @property
    def is_complete(self) -> bool:
        """Whether all are still at work."""
        return not any(task.done() for task in self._tasks)

    def start(self, port: int) -> None:
        """Set all to work."""
        assert not self._tasks
        for one in (*self.producers, *self.consumers):
            self._tasks.append(asyncio.create_task(self._run(one, port)))

    async def _run(self, one: Producer | Consumer, port: int) -> None:
        try:
            await one.work(port)
        except (CutError, ConnectionError):
            return
        except RefusedError as error:
            self.account.codes[error.status] += 1
            if error.status not in (3, 9):
                self.account.add(f"{type(one).__name__}: refused with {error}")
        except TimeoutError:
            self.account.add(f"{type(one).__name__}: an answer did not come")
        except Exception as error:
            self.account.add(f"{type(one).__name__}: {type(error).__name__}: {error}")

    async def wait_until_cut(self, seconds: float = 30.0) -> None:
        """The broker is gone: until everybody has noticed."""
        if self._tasks:
            _, waiting = await asyncio.wait(self._tasks, timeout=seconds)
            if waiting:
                self.account.add(f"{len(waiting)} connections do not notice in {seconds} s that the broker is gone")
        await self.stop()

    async def stop(self) -> None:
        """Stop wherever they are; what is under way stays unknown."""
        waiting = set(self._tasks)
        while waiting:
            for task in waiting:
                task.cancel()  # again and again: asyncio.wait_for may swallow one that comes with its answer
            _, waiting = await asyncio.wait(waiting, timeout=0.1)
        self._tasks.clear()

    async def check(self, port: int, *, is_whole: bool) -> None:
        """Hold what the broker has against what it said."""
        await self.account.check(port, TOPICS, APPS, is_whole=is_whole)

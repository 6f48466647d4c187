"""The archive of the simulation: reads archived topics and the events, and moves its mark behind what it has read."""

import json

from lakemq.delivery.trace_record import EVENTS_TOPIC, Event, unpack_events
from lakemq.envelope import open_fields
from lakemq.message import Message
from lakemq.record import read_fields
from lakemq.testing.actor import Client, Stage, ignore
from lakemq.testing.history import PartitionKey, violate
from lakemq.testing.net import Weather
from lakemq.wire.commands import Ack
from lakemq.wire.consume import (
    CommitAckIndex,
    FetchPartitionMessage,
    PartitionFetch,
    PartitionIndex,
    TopicIndexes,
    TopicPartitionFetch,
)
from lakemq.wire.dialect import Form
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import Inspect

_OUT_OF_RANGE = 184


class Archiver(Client):
    """One who reads everything once and remembers it, whatever the broker forgets."""

    def __init__(self, stage: Stage, app: str, gap_ms: int) -> None:
        super().__init__(stage, "archiver", app, Form(), Weather())
        self.read_to: dict[PartitionKey, int] = {}  # what lies before it is archived
        self.events: dict[int, list[Event]] = {}  # by the index of their block
        self._gap_ms = gap_ms
        self._turn = 0

    def introduced(self) -> None:
        self._go_on()

    def _keys(self) -> list[PartitionKey]:
        archived = [one for one in self.stage.living_topics() if one.is_archived]
        keys = [(one.name, partition) for one in archived for partition in range(one.partitions)]
        return [*keys, (EVENTS_TOPIC, 0)]

    def _go_on(self) -> None:
        self._turn += 1
        keys = self._keys()
        self._read(*keys[self._turn % len(keys)])
        if self._turn % 10 == 3:
            self._inspect(keys[0][0])
        gap_ms = 5 if self.stage.is_calm else self.stage.rng.randint(1, 2 * self._gap_ms)
        self._later_on(gap_ms, "read", self._go_on)

    def _read(self, topic: str, partition: int) -> None:
        index = self.read_to.get((topic, partition), 0)

        def fetched(status: int, ack: Ack | None) -> None:
            told = ack.topics[0].partitions[0] if ack is not None else None
            if told is None or self.read_to.get((topic, partition), 0) != index:
                return
            if told.code == _OUT_OF_RANGE and topic not in self.stage.history.dropped:
                violate("I16", f"{topic}/{partition}: {index} was not archived, and is out of range")
            if told.messages.count:
                self._take(topic, partition, index, told.messages)
            if self.stage.rng.random() < 0.5:
                self._mark(topic, partition)

        wish = PartitionFetch(partition, 50, index)
        self.ask(FetchPartitionMessage((TopicPartitionFetch(topic, (wish,)),), self.app), fetched)

    def _inspect(self, topic: str, after: str = "") -> None:
        """What has become of the messages of a topic, in small pages."""

        def told(status: int, ack: Ack | None) -> None:
            if ack is None:
                return
            for app in json.loads(ack.body)["apps"]:
                for one in app["partitions"]:
                    if "ack_index" in one and not one["first_index"] <= one["ack_index"] <= one["visible_index"]:
                        violate("I13", f"{topic}, {app['app']}: {one}")
            if ack.next:
                self._inspect(topic, ack.next)

        self.ask(Inspect("deliveries", topic, self.app, after, 3), told)

    def _take(self, topic: str, partition: int, index: int, block: MessageBlock) -> None:
        if topic == EVENTS_TOPIC:
            self.read_to[topic, partition] = self._take_events(block)
            return
        _, found = self.open_block(topic, block, partition)
        self.stage.history.run_of(topic, partition, found, index)
        self.read_to[topic, partition] = found[-1].index + 1
        self.stage.history.counts["archived"] += len(found)

    def _take_events(self, block: MessageBlock) -> int:
        data = block.stored().joined()
        at = last = 0
        while at < len(data):
            fields, at = read_fields(data, at)
            message = open_fields(fields)
            assert isinstance(message, Message)
            last = fields.index
            self.events[last] = unpack_events(message.body)
            self.stage.history.counts["events read"] += len(self.events[last])
        return last + 1

    def _mark(self, topic: str, partition: int) -> None:
        index = self.read_to.get((topic, partition), 0)
        if self.stage.rng.random() < 0.1:
            index = self.stage.rng.randint(0, index)  # which is ignored
        command = CommitAckIndex((TopicIndexes(topic, (PartitionIndex(partition, index),)),), self.app)
        self.ask(command, ignore)

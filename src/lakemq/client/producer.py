"""Sending one message or many and waiting for the outcome. Pure; `lanes.py` has what is sent in the background."""

from collections.abc import Iterable, Mapping
from typing import Any

from lakemq.client.config import QOS_OF_ACKS, Acks
from lakemq.client.core import Core
from lakemq.client.courier import Courier
from lakemq.client.errors import BrokerUnreachableError, SendTimeoutError
from lakemq.client.outbox import Outbox
from lakemq.client.outgoing import (
    Body,
    Message,
    Tags,
    attributes_bytes,
    body_bytes,
    is_special,
    key_bytes,
    marked,
    scheduled,
    tags_text,
)
from lakemq.client.parcel import Packing, Parcel
from lakemq.client.promise import Promise, Steps, start
from lakemq.client.receipt import Outcome, Receipt, SendReport
from lakemq.client.router import Route
from lakemq.errors import BadParameterError, LakeMQError
from lakemq.names import topic_name

_REQUEST_BYTES = 4 << 20  # of send_many: half of what a frame may have


class Producer:
    """All that one client sends. With an outbox, what cannot be delivered now is kept and delivered later."""

    def __init__(self, core: Core, outbox: Outbox | None = None) -> None:
        config = core.config
        new_id = outbox.new_id if outbox is not None else None
        self.core = core
        self.courier = Courier(core)
        self.outbox = outbox
        self.packing = Packing(config.app, config.compression, config.compress_bytes_min, new_id)
        self._topics: dict[str, str] = {}

    def send(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        tags: Tags | None = None,
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
        ordered: bool = False,
        acks: Acks | None = None,
        priority: int = 0,
        timeout_ms: int | None = None,
        uniq_id: str | None = None,
    ) -> Promise[Receipt]:
        """Send one message. What can never be sent is raised here, before anything leaves."""
        core = self.core
        parcel = Parcel(self.topic(topic), partition, self.acks(acks), self.packing, key=key, is_ordered=ordered)
        headers = marked(headers, body)
        attributes = attributes_bytes(headers, tags_text(tags)) if headers or tags else b""
        parcel.add_alone(body_bytes(body), key_bytes(key), attributes, core.wall_ms, priority, uniq_id)
        parcel.seal(core.wall_ms)
        parcel.deadline_ms = core.now_ms + (core.config.timeout_ms if timeout_ms is None else timeout_ms)
        if self.outbox is None:
            asked = self.courier.try_now(parcel)
            if asked is not None:
                sent: Promise[Receipt] = Promise()
                asked.then(lambda answer: self._answered(parcel, sent, answer))
                return sent
        return start(self._send(parcel, None))

    def send_many(self, topic: str, messages: Iterable[Message | Body], acks: Acks | None) -> Promise[SendReport]:
        """Send many messages: one request per partition, more where that would be large."""
        return start(self._send_many(self.topic(topic), list(messages), self.acks(acks)))

    def deliver(self, parcel: Parcel) -> Steps[bool]:
        """Bring a sealed parcel to its broker; True if it waits in the outbox instead."""
        return self.courier.deliver(parcel) if self.outbox is None else self.outbox.deliver(parcel)

    def receipt(self, parcel: Parcel, place: int, is_queued: bool = False) -> Receipt:
        """What the sender of one of its messages is told."""
        partition, offset = parcel.where(place)
        return Receipt(parcel.topic, partition, offset, parcel.acks, parcel.uniq_ids.get(place), is_queued)

    def topic(self, topic: str) -> str:
        """The topic's full name, checked."""
        full = self._topics.get(topic)
        if full is None:
            full = topic_name(self.core.config.full_topic(topic))
            self._topics[topic] = full
        return full

    def acks(self, acks: Acks | None) -> Acks:
        """The level asked for, checked."""
        if acks is None:
            return self.core.config.acks
        if acks not in QOS_OF_ACKS:
            raise BadParameterError(f"acks={acks!r} is not one of {', '.join(QOS_OF_ACKS)}")
        return acks

    def partition_of(self, route: Route, partition: int | None, key: str | None, is_ordered: bool) -> int | None:
        """The partition that is the message's own; None if any will do."""
        if partition is not None:
            if partition not in route.partitions:
                raise BadParameterError(f"{route.topic} has no partition {partition}; it has {len(route.partitions)}")
            return partition
        selector = self.courier.selector
        return selector.select(route, key, is_ordered) if selector.is_by_key(route, key, is_ordered) else None

    def put(self, parcel: Parcel, message: Message) -> int:
        """Lay out a message in an open parcel, in a carrier if it may be in one; its place."""
        wall_ms, body, key = self.core.wall_ms, body_bytes(message.body), key_bytes(message.key)
        tags = tags_text(message.tags)
        headers = marked(message.headers, message.body)
        headers = scheduled(headers, message.delay, message.deliver_at, message.expire, wall_ms)
        if message.priority or is_special(headers, message.uniq_id) or len(body) > self.core.config.batch_bytes:
            attributes = attributes_bytes(headers, tags)
            return parcel.add_alone(body, key, attributes, wall_ms, message.priority, message.uniq_id)
        return parcel.add(body, key, tags, attributes_bytes(headers) if headers else b"", wall_ms)

    def _answered(self, parcel: Parcel, sent: Promise[Receipt], answer: Promise[Any]) -> None:
        """A first try has an outcome; if it is an error, go on as with any other."""
        try:
            self.courier.arrived(parcel, answer.result())
        except LakeMQError as error:
            start(self._send(parcel, error)).then(sent.settle_as)
        else:
            sent.resolve(self.receipt(parcel, 0))

    def _send(self, parcel: Parcel, first_error: LakeMQError | None) -> Steps[Receipt]:
        if self.outbox is None:
            is_queued = yield from self.courier.deliver(parcel, first_error)
        else:
            is_queued = yield from self.outbox.deliver(parcel)
        return self.receipt(parcel, 0, is_queued)

    def _send_many(self, topic: str, messages: list[Message | Body], acks: Acks) -> Steps[SendReport]:
        deadline_ms = self.core.now_ms + self.core.config.timeout_ms
        outcomes: list[Outcome] = [BrokerUnreachableError()] * len(messages)
        route: Route | None = None
        try:
            route = yield from self.core.route(topic, self.core.config.app, deadline_ms)
        except (BrokerUnreachableError, SendTimeoutError):
            if self.outbox is None:
                raise
        started: list[tuple[Parcel, list[int], Promise[bool]]] = []
        for parcel, members in self._parcels(route, topic, messages, acks, outcomes):
            parcel.seal(self.core.wall_ms)
            parcel.deadline_ms = deadline_ms
            started.append((parcel, members, start(self.deliver(parcel))))
        for parcel, members, delivery in started:
            try:
                is_queued = yield delivery
            except LakeMQError as error:
                for nth in members:
                    outcomes[nth] = error
            else:
                for place, nth in enumerate(members):
                    outcomes[nth] = self.receipt(parcel, place, is_queued)
        return SendReport(outcomes)

    def _parcels(
        self, route: Route | None, topic: str, messages: list[Message | Body], acks: Acks, outcomes: list[Outcome]
    ) -> list[tuple[Parcel, list[int]]]:
        """Messages by partition, with which they are; those that can never be sent get their outcome here."""
        parcels: list[tuple[Parcel, list[int]]] = []
        open_ones: dict[int | None, tuple[Parcel, list[int]]] = {}
        for nth, each in enumerate(messages):
            message = each if isinstance(each, Message) else Message(each)
            key = message.key
            try:
                if route is not None:
                    partition, key = self.partition_of(route, message.partition, key, message.ordered), None
                else:
                    partition = message.partition
                parcel, members = open_ones.get(partition, (None, []))
                if parcel is None or self._is_full(parcel) or parcel.is_ordered != message.ordered or key is not None:
                    parcel = Parcel(topic, partition, acks, self.packing, key=key, is_ordered=message.ordered)
                    members = []
                    open_ones[partition] = parcel, members
                    parcels.append((parcel, members))
                self.put(parcel, message)
                members.append(nth)
            except LakeMQError as error:
                outcomes[nth] = error
        return [(parcel, members) for parcel, members in parcels if members]

    def _is_full(self, parcel: Parcel) -> bool:
        """Where any partition will do, the next parcel may go elsewhere; else a request is as large as it may be."""
        return parcel.size >= (self.core.config.batch_bytes if parcel.partition is None else _REQUEST_BYTES)

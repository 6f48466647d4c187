"""Messages on their way out in the background: collected per topic and partition, sent when large or old enough.

Pure. A lane is the open parcel of one topic, partition and level; messages that any partition will do for share one.
What is not confirmed yet counts against a bound, by bytes and by number.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from lakemq.client.config import Acks
from lakemq.client.errors import made_unknown
from lakemq.client.outgoing import Body, Message, Tags, body_bytes, key_bytes, marked, tags_text
from lakemq.client.parcel import ITEM_BYTES_MIN, Parcel
from lakemq.client.producer import Producer
from lakemq.client.promise import Promise, Steps, start
from lakemq.client.receipt import Receipt
from lakemq.errors import LakeMQError

# What a send_soon of a body alone has for key, tags, headers, partition, ordered, acks, priority and uniq_id.
NOTHING_ELSE = (None, None, None, None, False, None, 0, None)

# Topic, partition (None: any), level, and the key that will choose the partition where that cannot be known yet.
_Lane = tuple[str, int | None, Acks, str | None]


class Lanes:
    """What send_soon has taken and the broker has not confirmed."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._core = producer.core
        self._config = producer.core.config
        self._open: dict[_Lane, Parcel] = {}
        self._any_partition: dict[str, str] = {}  # topics whose messages without a key may go anywhere; full names
        self._unfinished: dict[Parcel, None] = {}
        self._room: Promise[None] = Promise()
        self.buffered_bytes = 0
        self.buffered_count = 0

    def put_plain(self, topic: str, body: bytes) -> tuple[Parcel, int] | None:
        """The short way for a body and nothing else, into a parcel that is open and stays so; None if it is not so.

        Needs no time and leaves nothing to do: what most messages take.
        """
        full = self._any_partition.get(topic)
        if full is None:
            return None
        config = self._config
        parcel = self._open.get((full, None, config.acks, None))
        if parcel is None:
            return None
        assert not parcel.is_ordered, "ordered messages have a partition or a key"
        size = ITEM_BYTES_MIN + len(body)
        if (
            parcel.size + size >= config.batch_bytes
            or parcel.count + 1 >= config.batch_count
            or self.buffered_bytes + size > config.buffer_bytes
            or self.buffered_count >= config.buffer_count
        ):
            return None
        place = parcel.add(body, b"", "", b"", self._core.wall_ms)
        self.buffered_bytes += size
        self.buffered_count += 1
        return parcel, place

    def put(
        self,
        topic: str,
        body: Body,
        key: str | None = None,
        tags: Tags | None = None,
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
        ordered: bool = False,
        acks: Acks | None = None,
        priority: int = 0,
        uniq_id: str | None = None,
    ) -> tuple[Parcel, int] | Promise[Any]:
        """Take a message: its parcel and its place there. Or what to wait for before this is called again."""
        config = self._config
        data = body if type(body) is bytes else body_bytes(body)
        headers = marked(headers, body)
        if self.buffered_count and (
            self.buffered_count >= config.buffer_count or self.buffered_bytes + len(data) > config.buffer_bytes
        ):
            return self._room
        if key is None and partition is None and not ordered and topic in self._any_partition:
            lane: _Lane = (self._any_partition[topic], None, acks or config.acks, None)
        else:
            found = self._lane(topic, key, partition, ordered, acks)
            if isinstance(found, Promise):
                return found
            lane = found
        parcel = self._open.get(lane)
        if parcel is None or parcel.is_ordered != ordered:
            parcel = self._begin(lane, ordered)
        before = parcel.size
        if headers or priority or uniq_id is not None or len(data) > config.batch_bytes:
            place = self._producer.put(parcel, Message(data, key, tags, headers, None, ordered, priority, uniq_id))
        else:
            place = parcel.add(
                data, key_bytes(key) if key else b"", tags_text(tags) if tags else "", b"", self._core.wall_ms
            )
        self.buffered_bytes += parcel.size - before
        self.buffered_count += 1
        if parcel.size >= config.batch_bytes or parcel.count >= config.batch_count:
            self._send_off(lane, parcel)
        return parcel, place

    def receipt(self, parcel: Parcel, place: int) -> Receipt:
        """What the sender of one message is told, once its parcel is done."""
        parcel.done.result()
        return self._producer.receipt(parcel, place, parcel.is_queued)

    def flush(self) -> Promise[None]:
        """Send what is waiting; the promise is kept when all that was taken before has an outcome."""
        for lane, parcel in list(self._open.items()):
            self._send_off(lane, parcel)
        return start(self._all_done(list(self._unfinished)))

    def abandon(self, error: LakeMQError) -> None:
        """The client is closed: what has no outcome gets this one."""
        unfinished, self._unfinished = self._unfinished, {}
        self._open.clear()
        for parcel in unfinished:
            has_left = parcel.sent_to is not None and parcel.placing is None
            parcel.done.fail(made_unknown(type(error)(error.detail)) if has_left else error)

    def is_room(self, promise: Promise[Any]) -> bool:
        """Whether what `put` asked to wait for is room in the buffer."""
        return promise is self._room

    def _lane(
        self, topic: str, key: str | None, partition: int | None, ordered: bool, acks: Acks | None
    ) -> _Lane | Promise[Any]:
        level = self._producer.acks(acks)
        full = self._producer.topic(topic)
        route = self._core.router.last_known(full, self._config.app)
        if route is None and self._producer.outbox is None:
            return start(self._known(full))
        if route is None:  # the outbox keeps it until somebody can say where it goes
            return full, partition, level, "" if key is None and ordered else key
        found = self._producer.partition_of(route, partition, key, ordered)
        if key is None and partition is None and not ordered and found is None:
            self._any_partition[topic] = full
        return full, found, level, None

    def _known(self, topic: str) -> Steps[Any]:
        return (yield from self._core.route(topic, self._config.app, self._core.now_ms + self._config.timeout_ms))

    def _begin(self, lane: _Lane, ordered: bool) -> Parcel:
        before = self._open.get(lane)
        if before is not None:
            self._send_off(lane, before)
        topic, partition, acks, key = lane
        parcel = Parcel(topic, partition, acks, self._producer.packing, key=key, is_ordered=ordered)
        self._open[lane] = parcel
        self._unfinished[parcel] = None
        due_ms = self._core.now_ms + self._config.linger_ms
        self._core.timers.at(due_ms, partial(self._send_off, lane, parcel))
        return parcel

    def _send_off(self, lane: _Lane, parcel: Parcel) -> None:
        """Seal it and let it go; nothing if it has gone."""
        if not parcel.is_open:
            return
        if self._open.get(lane) is parcel:
            del self._open[lane]
        if not parcel.count:  # what was to go into it could not be sent at all
            del self._unfinished[parcel]
            return
        parcel.seal(self._core.wall_ms)
        parcel.deadline_ms = self._core.now_ms + self._config.delivery_timeout_ms
        start(self._producer.deliver(parcel)).then(partial(self._arrived, parcel))

    def _arrived(self, parcel: Parcel, delivery: Promise[bool]) -> None:
        self.buffered_bytes -= parcel.size
        self.buffered_count -= parcel.count
        self._unfinished.pop(parcel, None)
        if delivery.error is not None:
            self._core.note("warning", f"{parcel.count} messages to {parcel.topic} were not sent: {delivery.error}")
            parcel.done.fail(delivery.error)
        else:
            parcel.is_queued = delivery.result()
            parcel.done.resolve(None)
        parcel.forget_bytes()
        room, self._room = self._room, Promise()
        room.resolve(None)

    def _all_done(self, parcels: list[Parcel]) -> Steps[None]:
        for parcel in parcels:
            yield self._core.settled(parcel.done)

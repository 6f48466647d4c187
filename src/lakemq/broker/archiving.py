"""Archived topics: how far the archive has come, and the events that it is told.

The archive is an app like others, which reads by partition. Its ack index is the archive mark: all below is safe in the
lake. Retention waits for it (`keeping.py`), for ever or up to so many bytes.
"""

from collections.abc import Iterator
from functools import partial

from lakemq.broker.access import Access
from lakemq.broker.changes import has_events
from lakemq.broker.config import BrokerConfig
from lakemq.broker.effects import World
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.tracing import ROWS_MANY
from lakemq.cluster.metadata import Topic
from lakemq.delivery.trace_record import EVENTS_TOPIC, Event, pack_blocks
from lakemq.envelope import pack
from lakemq.errors import BadParameterError, LakeMQError
from lakemq.message import Message
from lakemq.storage.journal_record import NO_ADDRESS

_BLOCK_BYTES_MAX = 256 << 10
_BESIDE_BYTES = 512  # of a record, beside a block
_TRY_AGAIN_MS = 1000
_COMPLAIN_EVERY_MS = 60_000


class Archiving:
    """What the broker does for the archive."""

    def __init__(self, ledger: Ledger, config: BrokerConfig, access: Access, metrics: Metrics, world: World) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._config = config
        self._access = access
        self._metrics = metrics
        self._world = world
        self._next_try_ms = 0
        self._complained_ms: int | None = None
        self._behind_bytes = 0  # past what retention waits for

    # --- marks -------------------------------------------------------------------------------------------------

    def marks(self) -> Iterator[tuple[Topic, int, int]]:
        """Of each partition here whose messages are to be archived: topic, number, and the mark."""
        metadata, acks = self._ledger.metadata, self._ledger.state.acks
        archived = [topic for topic in metadata.topics.values() if topic.is_archived]
        if not has_events(metadata):
            return  # events are of use as long as there is something that they tell of
        for topic in archived:
            subscription = metadata.subscription(topic.name, self._config.archive.app)
            number = subscription.number if subscription is not None else 0
            for partition in self._access.led_partitions(topic):
                yield topic, partition, acks.get(number, partition)

    def needed_position(self) -> int:
        """The first byte that retention must leave for the archive."""
        end = needed = self._group.journal.end_position
        for topic, partition, mark in self.marks():
            position = self._group.position_from(topic.number, partition, mark)
            if position is not None:
                needed = min(needed, position)
        lag_max = self._config.archive.lag_bytes_max
        self._behind_bytes = end - needed if lag_max and end - needed > lag_max else 0
        return end - lag_max if self._behind_bytes else needed

    def watch(self, now: Now) -> None:
        """Say so if retention does not wait any more."""
        if not self._behind_bytes:
            return
        self._metrics.capped["archive_lag"] += 1
        if self._complained_ms is None or now.monotonic_ms - self._complained_ms >= _COMPLAIN_EVERY_MS:
            self._complained_ms = now.monotonic_ms
            text = f"the archive is {self._behind_bytes} bytes behind: what retention drops will be missing in it"
            self._world.note("warning", text)

    def lags(self) -> dict[str, int]:
        """How many messages of each archived topic the archive does not have yet."""
        lags: dict[str, int] = {}
        for topic, partition, mark in self.marks():
            first = self._group.first_index(topic.number, partition)
            end = self._group.visible_index(topic.number, partition)
            lags[topic.name] = lags.get(topic.name, 0) + max(end - max(mark, first), 0)
        return lags

    # --- events ------------------------------------------------------------------------------------------------

    def turn_ends(self, now: Now) -> None:
        """Write the events that have waited long enough, along with the turn."""
        if self._ledger.tracing.is_due(now) and now.monotonic_ms >= self._next_try_ms:
            self.write_events(now)

    def write_events(self, now: Now) -> None:
        """Append all that wait to the topic of events. What the journal does not take waits, within a bound."""
        tracing = self._ledger.tracing
        topic = self._ledger.metadata.topics.get(EVENTS_TOPIC)
        led = self._access.led_partitions(topic) if topic is not None else ()
        events = tracing.take()
        if topic is None or not led:
            tracing.drop(len(events))
            return
        bytes_max = min(_BLOCK_BYTES_MAX, self._group.record_bytes_max - _BESIDE_BYTES)
        at = 0
        for count, block in pack_blocks(events, ROWS_MANY, bytes_max):
            try:
                end = self._append(topic, led[0], block, now)
            except BadParameterError:  # it would never fit
                tracing.drop(count)
            except LakeMQError:  # a full disk, or one that is too slow
                tracing.give_back(events[at:])
                self._next_try_ms = now.monotonic_ms + _TRY_AGAIN_MS
                return
            else:
                self._ledger.undo_with(end, partial(self._taken_back, events[at : at + count], now))
            at += count

    def _taken_back(self, events: list[Event], now: Now) -> None:
        self._ledger.tracing.give_back(events)
        self._next_try_ms = now.monotonic_ms + _TRY_AGAIN_MS

    def _append(self, topic: Topic, partition: int, block: bytes, now: Now) -> int:
        message = bytearray(pack(Message(body=block, partition=partition, send_time_ms=now.wall_ms)))
        appended = self._ledger.append_messages(
            topic.number, partition, message, 1, 1, now.wall_ms, client_address=NO_ADDRESS
        )
        self._metrics.messages_in[topic.name] += 1
        self._metrics.bytes_in[topic.name] += len(message)
        return appended.end_position

"""Copies of stored messages, appended to a topic as new ones: of a dead letter, or of a range of a topic.

A copy says where it comes from (LAKEMQ_RESENT). It has no EXPIRE that has passed, and not the UNIQ_ID of its original:
that one was stored, and this one is meant.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lakemq.attributes import EXPIRE, encode_attributes
from lakemq.broker.access import Access, check_writable
from lakemq.broker.events import Now
from lakemq.broker.jobs import PER_SECOND_MAX, Job, Jobs, checked_by, checked_flag, checked_number
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.cluster.metadata import Topic
from lakemq.delivery.selection import is_expired
from lakemq.delivery.uniq import UNIQ_ID, Place, ids_of
from lakemq.envelope import open_fields, pack
from lakemq.errors import (
    BadParameterError,
    BrokerNotWritableError,
    IndexOutOfRangeError,
    LakeMQError,
    NotLeaderError,
    ReadError,
    RequestError,
    TopicNotFoundError,
    TopicNotWritableError,
)
from lakemq.message import UNSET_INDEX, BatchMessage, Message
from lakemq.record import BATCH_BIT, read_fields, scan
from lakemq.storage.fetch import RecordSlice
from lakemq.storage.partition_group import Appended

RESENT = "LAKEMQ_RESENT"  # topic/partition/index of the original
_INDEX_MAX = 1 << 62
_STEP_BYTES = 256 << 10
_SAMPLE_COUNT = 200
_SAMPLE_BYTES = 1 << 20


class Range(NamedTuple):
    """Messages of one partition, `end` excluded."""

    partition: int
    first: int
    end: int


class Resending:
    """Appends copies."""

    def __init__(self, ledger: Ledger, access: Access, metrics: Metrics, jobs: Jobs) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._access = access
        self._metrics = metrics
        self._jobs = jobs

    # --- one or some -----------------------------------------------------------------------------------------------

    def target(self, name: str, partition: int) -> tuple[Topic, int]:
        """A topic that may be written to, and that partition of it, or one in its place."""
        topic = self._topic(name)
        check_writable(name)
        if not self._access.is_writable:
            raise BrokerNotWritableError("the broker was set to take no messages")
        if not topic.is_writable:
            raise TopicNotWritableError(f"topic {name!r} was set to take no messages")
        led = self._access.writable_partitions(topic)
        if partition in led:
            return topic, partition
        if not led:
            raise NotLeaderError(f"no partition of topic {name!r} is at this broker")
        return topic, led[partition % len(led)]

    def append(self, topic: Topic, partition: int, copies: Sequence[Message], address: bytes, now: Now) -> Appended:
        """Put copies into a partition, as one record."""
        packed = [pack(replace(one, partition=partition, index=UNSET_INDEX)) for one in copies]
        messages = bytearray().join(packed)
        found = scan(messages, 0, len(messages), len(packed))
        appended = self._ledger.append_messages(
            topic.number, partition, messages, len(packed), found.index_count, now.wall_ms, client_address=address
        )
        uniq_ids = self._ledger.state.uniq_ids
        for sender, uniq_id, _, index in ids_of(messages):
            key = topic.number, sender, uniq_id
            uniq_ids.add(key, Place(partition, index, appended.end_position, now.wall_ms))
            self._ledger.undo_with(appended.end_position, partial(uniq_ids.discard, key))
        if any(EXPIRE in one.attributes for one in copies):
            self._ledger.state.expiring.add(topic.number, partition)
        self._ledger.tracing.produced(topic.number, partition, *appended[:2], "", "", now)
        self._metrics.messages_in[topic.name] += found.index_count
        self._metrics.bytes_in[topic.name] += len(messages)
        return appended

    # --- a range of a topic ----------------------------------------------------------------------------------------

    def resend_range(
        self,
        now: Now,
        topic: str,
        by: str,
        *,
        partition: int | None = None,
        first: int | None = None,
        last: int | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
        to_topic: str | None = None,
        per_second: int = 0,
        execute: bool = False,
    ) -> dict[str, Any]:
        """What would be copied, by indexes or store times (`last` and `until_ms` included); a job if `execute`."""
        checked_by(by)
        checked_flag("execute", execute)
        checked_number("per_second", per_second, 0, PER_SECOND_MAX)
        source = self._topic(topic)
        ranges = self._ranges(source, partition, first, last, from_ms, until_ms)
        goal = to_topic if to_topic is not None else topic
        self.target(goal, 0)
        count = sum(one.end - one.first for one in ranges)
        size, is_estimate = self._size_of(source, ranges)
        job = None
        if execute and count:
            work = _Copying(self, self._ledger, source, goal, ranges)
            places = ", ".join(f"{one.partition}: {one.first} to {one.end - 1}" for one in ranges[:4])
            about = f"{topic} ({places}{', …' if len(ranges) > 4 else ''}) to {goal}"
            job = self._jobs.begin("resend_range", about, by, count, per_second, work, now).shown()
        return {
            "topic": topic,
            "to_topic": goal,
            "partitions": [
                {"partition": one.partition, "first": one.first, "last": one.end - 1, "count": one.end - one.first}
                for one in ranges
            ],
            "count": count,
            "bytes": size,
            "is_estimate": is_estimate,
            "job": job,
        }

    def _ranges(
        self,
        topic: Topic,
        partition: int | None,
        first: int | None,
        last: int | None,
        from_ms: int | None,
        until_ms: int | None,
    ) -> list[Range]:
        is_by_index, is_by_time = (first, last) != (None, None), (from_ms, until_ms) != (None, None)
        if is_by_index == is_by_time:
            raise BadParameterError("say which messages: first and last, or from_ms and until_ms")
        led = self._access.led_partitions(topic)
        if partition is None:
            if is_by_index:
                raise BadParameterError("indexes are of one partition: which one?")
            partitions = list(led)
        elif partition not in led:
            raise BadParameterError(f"topic {topic.name!r} has no partition {partition} here")
        else:
            partitions = [partition]
        found = []
        for one in partitions:
            oldest, end = self._group.first_index(topic.number, one), self._group.visible_index(topic.number, one)
            if is_by_index:
                start = checked_number("first", first if first is not None else oldest, 0, _INDEX_MAX)
                stop = checked_number("last", last if last is not None else end - 1, -1, _INDEX_MAX) + 1
            else:
                start = self._index_at(topic, one, "from_ms", from_ms, 0, oldest)
                stop = self._index_at(topic, one, "until_ms", until_ms, 1, end)
            start, stop = max(start, oldest), min(stop, end)
            if start < stop:
                found.append(Range(one, start, stop))
        return found

    def _index_at(self, topic: Topic, partition: int, noun: str, time_ms: int | None, later_ms: int, else_: int) -> int:
        if time_ms is None:
            return else_
        return self._group.index_of_time(
            topic.number, partition, checked_number(noun, time_ms, 0, _INDEX_MAX) + later_ms
        )

    def _size_of(self, topic: Topic, ranges: list[Range]) -> tuple[int, bool]:
        """How many bytes that is, about: the first messages of each partition stand for all of them."""
        size = 0.0
        is_estimate = False
        for one in ranges:
            count = min(one.end - one.first, _SAMPLE_COUNT)
            try:
                slices = self._group.read(topic.number, one.partition, one.first, count, _SAMPLE_BYTES)
            except LakeMQError:  # the job will say what is wrong
                slices = []
            seen = slices[-1].next_index - slices[0].first_index if slices else 0
            seen_bytes = sum(len(each.messages) for each in slices)
            is_estimate = is_estimate or seen != one.end - one.first
            size += seen_bytes / seen * (one.end - one.first) if seen else 0
        return round(size), is_estimate

    def _topic(self, name: str) -> Topic:
        topic = self._ledger.metadata.topics.get(name) if isinstance(name, str) else None
        if topic is None:
            raise TopicNotFoundError(f"there is no topic {name!r}")
        return topic


class _Found(NamedTuple):
    """A message of the range, by itself; or what is the matter with those from `first` up to `after`."""

    first: int
    after: int
    message: Message | None
    trouble: LakeMQError | None = None


class _Copying:
    """The work of copying ranges; a place is how many indexes of them are behind."""

    slice_max = 100

    def __init__(self, resending: Resending, ledger: Ledger, source: Topic, goal: str, ranges: list[Range]) -> None:
        self._resending = resending
        self._ledger = ledger
        self._source = source
        self._goal = goal
        self._ranges = ranges
        self._opened: tuple[int, int, Message | BatchMessage] = (-1, -1, Message())  # partition, index: the last one

    def step(self, job: Job, count: int, now: Now) -> bool:
        place = job.progress.place
        passed = 0
        for one in self._ranges:
            if place < passed + one.end - one.first:
                index = one.first + place - passed
                self._copy(job, one._replace(first=index, end=min(index + count, one.end)), now)
                return True
            passed += one.end - one.first
        return False

    def _copy(self, job: Job, wanted: Range, now: Now) -> None:
        group, number = self._ledger.group, self._source.number
        place = job.progress.place
        try:
            slices = group.read(number, wanted.partition, wanted.first, wanted.end - wanted.first, _STEP_BYTES)
        except IndexOutOfRangeError:  # retention was faster
            gone = min(max(group.first_index(number, wanted.partition) - wanted.first, 1), wanted.end - wanted.first)
            job.move(self._ledger, job.progress.more(place=place + gone, skipped=gone))
            return
        except ReadError as error:
            job.move(self._ledger, job.progress.failing(place + 1, self._name(wanted, wanted.first), error))
            return
        parcel: list[_Found] = []
        address = slices[0].client_address if slices else b""
        for one in slices:
            for found in self._each(one, wanted):
                if parcel and (found.message is None or one.client_address != address):
                    self._append(job, wanted, place, parcel, address, now)
                    parcel = []
                address = one.client_address
                if found.message is not None:
                    parcel.append(found)
                    continue
                assert found.trouble is not None
                after = place + found.after - wanted.first
                name = self._name(wanted, found.first)
                job.move(self._ledger, job.progress.failing(after, name, found.trouble))
        if parcel:
            self._append(job, wanted, place, parcel, address, now)

    def _each(self, one: RecordSlice, wanted: Range) -> Iterator[_Found]:
        """The messages of a slice one by one, those of batches too, as far as they are wanted."""
        at = 0
        while at < len(one.messages):
            fields, at = read_fields(one.messages, at)
            after = fields.index + (fields.flag if fields.system_code & BATCH_BIT else 1)
            if self._opened[:2] != (wanted.partition, fields.index):
                try:
                    self._opened = wanted.partition, fields.index, open_fields(fields)
                except LakeMQError as error:
                    yield _Found(max(fields.index, wanted.first), min(after, wanted.end), None, error)
                    continue
            for index in range(max(fields.index, wanted.first), min(after, wanted.end)):
                yield _Found(index, index + 1, single(self._opened[2], index))

    def _append(self, job: Job, wanted: Range, place: int, parcel: list[_Found], address: bytes, now: Now) -> None:
        topic, partition = self._resending.target(self._goal, wanted.partition)
        copies = [
            copy_of(found.message, now, {RESENT: self._name(wanted, found.first)})
            for found in parcel
            if found.message is not None
        ]
        after = place + parcel[-1].after - wanted.first
        try:
            self._resending.append(topic, partition, copies, address, now)
        except RequestError as error:  # one of them is too large, now that it says where it comes from
            if len(parcel) > 1:
                for found in parcel:
                    self._append(job, wanted, place, [found], address, now)
            else:
                job.move(self._ledger, job.progress.failing(after, self._name(wanted, parcel[0].first), error))
            return
        for found in parcel:
            goal = f"copied to {topic.name}"
            self._ledger.tracing.resent(self._source.number, wanted.partition, found.first, "", goal, now)
        size = sum(len(one.body) for one in copies)
        job.move(self._ledger, job.progress.more(place=after, done=len(copies), bytes=size))

    def _name(self, wanted: Range, index: int) -> str:
        return origin_of(self._source.name, wanted.partition, index)


def single(value: Message | BatchMessage, index: int) -> Message:
    """That message of a batch, with what the batch says of all of them; or the only one."""
    if isinstance(value, Message):
        return value
    item = value.items[index - value.index]
    (one,) = replace(value, items=(item,), index=index).messages()
    return replace(one, attributes={**value.attributes, **one.attributes}) if value.attributes else one


def copy_of(message: Message, now: Now, more: dict[str, str]) -> Message:
    """The message to be stored anew, with further attributes."""
    attributes = {name: value for name, value in message.attributes.items() if name != UNIQ_ID}
    if is_expired(encode_attributes(message.attributes), now.wall_ms, message.stored_at_ms):
        attributes.pop(EXPIRE, None)
    return replace(message, attributes={**attributes, **more})


def origin_of(topic: str, partition: int, index: int) -> str:
    """Where a message was first, in one word."""
    return f"{topic}/{partition}/{index}"

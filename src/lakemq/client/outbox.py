"""Messages that survive a crash of the producer: kept before they are sent, struck off when the broker has them.

Pure steps; the file is the world's (`outbox_file.py`), the bytes are in `outbox_log.py`. Every MESSAGE gets an id
(UNIQ_ID), so what is sent again after a crash or an unknown outcome is stored once. What cannot be delivered now joins
a backlog that is delivered in order, and what comes after it waits behind it. While no broker can be reached nobody
waits at all: a message that is on disk is as safe as it gets.
"""

from collections import deque
from itertools import count as counter
from typing import Any

from lakemq.attributes import UNIQ_ID, decode_attributes
from lakemq.client.core import Core
from lakemq.client.courier import Courier
from lakemq.client.effects import Store
from lakemq.client.errors import ClientError, ClosedError
from lakemq.client.outbox_log import Entry, OutboxLog
from lakemq.client.parcel import Parcel
from lakemq.client.promise import Promise, Steps, start
from lakemq.client.selector import hash_partition
from lakemq.errors import AuthenticationError, LakeMQError
from lakemq.record import attributes_of

_MERGED_BYTES_MAX = 1 << 20
_LOOK_MS = 50  # how often it is looked whether there is a broker to wait for


class _Job:
    """A parcel in the backlog, and what of it stands in the file."""

    __slots__ = ("delivery", "done", "entries", "parcel")

    def __init__(self, parcel: Parcel, entries: list[Entry], delivery: Promise[bool] | None = None) -> None:
        self.parcel = parcel
        self.entries = entries
        self.delivery = delivery  # the one that is under way already
        self.done: Promise[None] = Promise()


class Outbox:
    """What one client has promised to send."""

    def __init__(self, core: Core, log: OutboxLog, id_prefix: str) -> None:
        self._core = core
        self._courier = Courier(core)
        self._log = log
        self._ids = (f"{id_prefix}-{number}" for number in counter(1))
        self._backlog: deque[_Job] = deque(_Job(_parcel_of([entry]), [entry]) for entry in log.live.values())
        self._unwritten = bytearray()
        self._is_sync_wanted = False
        self._written: Promise[None] = Promise()  # of what is in `_unwritten`
        self._is_storing = False
        self.is_draining = False

    @property
    def waiting(self) -> int:
        """Messages that the broker does not have yet."""
        return sum(entry.count for entry in self._log.live.values())

    def new_id(self) -> str:
        """An id that no message had before."""
        return next(self._ids)

    def deliver(self, parcel: Parcel) -> Steps[bool]:
        """Keep a sealed parcel, then bring it to its broker; True if it will be brought there later."""
        self._choose(parcel)
        entries, written = self._keep(parcel)
        try:
            yield written
        except LakeMQError:
            self._strike(entries)
            raise
        if self._backlog or self.is_draining:
            job = _Job(parcel, entries)
            self._queue(job)
            yield from self._wait(job.done, parcel.deadline_ms)
            if job.done.is_done:
                job.done.result()
            return not job.done.is_done
        delivery = start(self._courier.deliver(parcel))
        yield from self._wait(delivery, None)
        if not delivery.is_done:
            self._queue(_Job(parcel, entries, delivery))
            return True
        try:
            delivery.result()
        except LakeMQError as error:
            if not _is_passing(error):
                self._strike(entries)  # the caller is told, and has it back
                raise
            self._queue(_Job(parcel, entries))
            return True
        self._strike(entries)
        return False

    def _choose(self, parcel: Parcel) -> None:
        """Where there are several brokers, choose the partition now and write it down.

        Only the broker that got a message knows its id: after a crash it must not be sent to another.
        """
        route = self._core.router.last_known(parcel.topic, self._core.config.app)
        if parcel.partition is None and parcel.key is None and route is not None and len(route.brokers) > 1:
            selector = self._courier.selector
            parcel.partition = selector.select(route, None, parcel.is_ordered, parcel.id_to_route_by)

    def _partition_of(self, entry: Entry) -> int | None:
        """Where an entry goes: as it says, or by its id if nobody could say when it was written."""
        if entry.partition is not None or entry.key is not None:
            return entry.partition
        route = self._core.router.last_known(entry.topic, self._core.config.app)
        if route is None or len(route.brokers) < 2 or not route.partitions:
            return None
        uniq_id = decode_attributes(attributes_of(entry.message, 0)).get(UNIQ_ID, "")
        return hash_partition(uniq_id, route.partitions)

    def _queue(self, job: _Job) -> None:
        self._backlog.append(job)
        self.drain()

    def _wait(self, outcome: Promise[Any], deadline_ms: int | None) -> Steps[None]:
        """Until it is there, or the time has come, or no broker is."""
        core = self._core
        while not outcome.is_done and (deadline_ms is None or core.now_ms < deadline_ms):
            if deadline_ms is not None and not core.is_connected:
                return  # others wait before this one, and for nobody
            look_ms = core.now_ms + _LOOK_MS
            yield core.within(outcome, look_ms if deadline_ms is None else min(look_ms, deadline_ms))
            if not core.is_connected:
                return

    def drain(self) -> None:
        """Deliver the backlog in order, as long as it takes."""
        if self._backlog and not self.is_draining:
            self.is_draining = True
            start(self._drain()).then(self._drained)

    def _drained(self, drain: Promise[None]) -> None:
        self.is_draining = False
        if drain.error is not None and not isinstance(drain.error, ClosedError):
            self._core.note("error", f"the outbox keeps {self.waiting} messages: {drain.error}")

    def _drain(self) -> Steps[None]:
        failures = 0
        core = self._core
        while self._backlog:
            deadline_ms = core.now_ms + core.config.delivery_timeout_ms
            topic = self._backlog[0].parcel.topic
            if core.router.last_known(topic, core.config.app) is None:  # if that fails, so will what follows
                yield core.settled(start(core.route(topic, core.config.app, deadline_ms)))
            jobs = self._next_jobs()
            parcel = jobs[0].parcel if len(jobs) == 1 else _parcel_of([e for job in jobs for e in job.entries])
            if parcel.partition is None:
                parcel.partition = self._partition_of(jobs[0].entries[0])
            delivery, jobs[0].delivery = jobs[0].delivery, None
            try:
                if delivery is not None:
                    yield delivery
                else:
                    parcel.deadline_ms = deadline_ms
                    yield from self._courier.deliver(parcel)
            except (ClosedError, AuthenticationError):
                raise  # nothing more will go out of this process
            except LakeMQError as error:
                if _is_passing(error):
                    failures += 1
                    yield self._core.sleep(self._core.pause(failures))
                    continue
                self._set_aside(jobs, error)
            else:
                failures = 0
                self._strike([entry for job in jobs for entry in job.entries])
                _share_placing(parcel, jobs)
            for _ in jobs:
                self._backlog.popleft()

    def _set_aside(self, jobs: list[_Job], error: LakeMQError) -> None:
        """The broker will not have them: they stay in the file for the next start, and the others go on."""
        for job in jobs:
            self._core.note("error", f"a message to {job.parcel.topic} stays in the outbox: {error}")
            job.done.fail(error)

    def _next_jobs(self) -> list[_Job]:
        """The first of the backlog, with those behind it that may share its request."""
        jobs: list[_Job] = []
        size = 0
        for job in self._backlog:
            first = jobs[0] if jobs else job
            is_alone = len(job.entries) > 1 or job.delivery is not None
            is_alike = self._alike(job.entries[0]) == self._alike(first.entries[0]) and not is_alone
            if jobs and (not is_alike or size + job.parcel.size > _MERGED_BYTES_MAX):
                break
            jobs.append(job)
            size += job.parcel.size
            if is_alone:
                break
        return jobs

    def _alike(self, entry: Entry) -> tuple[object, ...]:
        return entry.topic, self._partition_of(entry), entry.key, entry.acks, entry.is_ordered

    def _keep(self, parcel: Parcel) -> tuple[list[Entry], Promise[None]]:
        """Note it down; the promise is kept once that is on disk."""
        assert parcel.has_ids, "without an id it might be stored twice"
        entries: list[Entry] = []
        records: list[bytes] = []
        try:
            for nth, count in enumerate(parcel.counts):
                message = b"".join(parcel.parts[3 * nth : 3 * nth + 3])
                entry, record = self._log.add(
                    parcel.topic, parcel.partition, parcel.key, parcel.acks, parcel.is_ordered, count, message
                )
                entries.append(entry)
                records.append(record)
        except LakeMQError:
            self._write(b"".join(records), is_synced=False)
            self._strike(entries)
            raise
        return entries, self._write(b"".join(records), is_synced=True)

    def _strike(self, entries: list[Entry]) -> None:
        """They are done. Without a sync: what a crash forgets is sent again, and stored once all the same."""
        self._write(b"".join(self._log.done(entry.sequence) for entry in entries), is_synced=False)

    def _write(self, data: bytes, is_synced: bool) -> Promise[None]:
        """Append to the file: one write and one sync for all that came while the last was running."""
        self._unwritten += data
        self._is_sync_wanted = self._is_sync_wanted or is_synced
        written = self._written
        if not self._is_storing:
            self._store()
        return written

    def _store(self) -> None:
        self._is_storing = True
        written, self._written = self._written, Promise()
        is_rewrite = self._log.is_mostly_done
        data = self._log.rewritten() if is_rewrite else bytes(self._unwritten)
        stored: Promise[None] = Promise()
        stored.then(lambda outcome: self._stored(outcome, written))
        self._core.ask_world(Store(data, stored, self._is_sync_wanted, is_rewrite))
        self._unwritten.clear()
        self._is_sync_wanted = False

    def _stored(self, outcome: Promise[None], written: Promise[None]) -> None:
        self._is_storing = False
        if self._unwritten:
            self._store()
        if outcome.error is not None:
            written.fail(outcome.error)
        else:
            written.resolve(None)


def _is_passing(error: LakeMQError) -> bool:
    """Whether waiting may help."""
    return error.retriable or (isinstance(error, ClientError) and not isinstance(error, ClosedError))


def _share_placing(parcel: Parcel, jobs: list[_Job]) -> None:
    """Tell those who still wait where their messages went."""
    at = 0
    for job in jobs:
        if parcel.placing is not None:
            job.parcel.placing = parcel.placing[at : at + len(job.entries)]
        job.parcel.partition = parcel.partition
        at += len(job.entries)
        job.done.resolve(None)


def _parcel_of(entries: list[Entry]) -> Parcel:
    first = entries[0]
    return Parcel.of_messages(
        first.topic,
        first.partition,
        first.key,
        first.acks,
        first.is_ordered,
        [(entry.message, entry.count) for entry in entries],
    )

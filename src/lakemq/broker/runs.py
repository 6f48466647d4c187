"""The plain produce requests of a turn, of all connections together: the way most messages come in.

A request is plain if it is like the one before it on its connection (`ProduceRoute`) and nothing about it or about the
broker is out of the ordinary. Of these whatever can be is done once a turn; what is left for each run of them is one
compiled call and a few lines. All others are given back, and go by `Producing`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lakemq.broker.access import Access
from lakemq.broker.answers import code_for, code_of, hold_up, send
from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.produce import Producing, RunReply
from lakemq.broker.sessions import Alike, Connection, ProduceRoute, route_key
from lakemq.broker.tracing import Subject
from lakemq.broker.waiters import Buffers, Reply, Waiters
from lakemq.errors import LakeMQError
from lakemq.storage.disk import Buffer
from lakemq.storage.index import PartitionIndex
from lakemq.storage.journal_record import HEADER_BYTES
from lakemq.storage.message_record import make_record
from lakemq.wire.header import REQUEST_HEADER_BYTES
from lakemq.wire.produce_run import REQUEST_BYTES, cut_run, run_acks, run_refusals

try:
    import lakemq._hot as _hot
except ImportError:  # no compiler when it was installed
    _hot = None  # type: ignore[assignment]  # its twin in Python is used

Arrival = tuple[Connection, memoryview]
Stored = tuple[int, int, int, int, bytes, bytes, bytes]
"""Where the run ends, its record's size, its messages, the next index, its requests, index entries and answers."""

# A record is longer than the requests it was made of by less than they are long: its header takes the place of theirs.
_GROWTH = 2
_PARTITION_IN_FIRST = 2 + 4  # behind the number of messages and the first one's length


class Failed(NamedTuple):
    """A bug came up at a connection's frames, from `at` on."""

    connection: Connection
    frames: memoryview
    at: int
    error: Exception


class TurnReply(Reply):
    """The answers to all runs of a turn that wait for nothing but its end.

    Their records lie side by side in one segment: they are written together or not at all.
    """

    __slots__ = ("_metrics", "_now", "_runs")

    def __init__(
        self,
        runs: list[tuple[Connection, bytes, ProduceRoute, bytes]],
        end_position: int,
        request_bytes: int,
        metrics: Metrics,
        now: Now,
    ) -> None:
        self.connection = None
        self.end_position = end_position
        self.buffers = []
        self.waits_for_sync = False
        self.request_bytes = request_bytes
        self.deadline_ms = 0
        self._runs = runs
        self._metrics = metrics
        self._now = now

    def tell(self) -> None:
        """They are written."""
        for connection, answers, _, _ in self._runs:
            if not connection.is_closing and not connection.port.send((answers,)):
                hold_up(connection, self._now)

    def refusal(self, error: LakeMQError) -> Buffers:
        """Each request failed, in the same way."""
        code = code_of(error)
        self._metrics.errors[code] += len(self._runs) - 1  # one is counted by whoever asks
        for connection, _, route, requests in self._runs:
            told = code_for(connection, error)
            refused = run_refusals(requests, route.topic_string, route.alike[0], self._now.wall_ms, told)
            send(connection, [refused], self._now)
        return []


class Runs:
    """Takes the plain requests out of what has arrived."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        producing: Producing,
        waiters: Waiters,
        metrics: Metrics,
    ) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._limits = config.limits
        self._access = access
        self._producing = producing
        self._waiters = waiters
        self._metrics = metrics

    def may_take(self, arrivals: Sequence[Arrival]) -> bool:
        """Whether all of it can be stored, however it is cut, with nothing to be looked at in between."""
        access, journal = self._access, self._group.journal
        size_max = 0
        for _, frames in arrivals:
            size_max += len(frames)
        size_max *= _GROWTH
        return (
            not access.is_draining
            and access.is_writable
            and not self._producing.is_sync_slow
            and self._waiters.in_flight_bytes <= self._limits.in_flight_bytes_total_max
            and journal.end_position - journal.synced_position + size_max <= self._limits.unsynced_bytes_high
            and self._group.room_for(size_max, self._ledger.term)
        )

    def take(self, arrivals: Sequence[Arrival], now: Now) -> tuple[Sequence[Arrival], list[Failed]]:
        """Store what is plain, after `may_take`, and park its answers. The rest comes back, and what was found broken.

        Each connection is in `arrivals` once at most, with whole frames.
        """
        left: list[Arrival] = []
        failed: list[Failed] = []
        turn = _Turn(self._group.journal.end_position)
        store_run = _hot.store_run if _hot is not None else store_run_python
        find_route = self._producing.routes.find
        version, term = self._ledger.metadata.version, self._ledger.term
        now_ms, monotonic_ms = now
        synced_position = self._group.journal.synced_position
        in_flight_max = self._limits.in_flight_bytes_max
        position, buffers, changes, runs = turn.position, turn.buffers, turn.changes, turn.runs
        for arrival in arrivals:
            connection, frames = arrival
            route = connection.route
            if (
                route is None
                or route.metadata_version != version
                or not route.is_plain
                or connection.is_closing
                or connection.is_output_full
                or connection.is_choked
                or connection.backlog
                or connection.in_flight_bytes > in_flight_max
            ):
                left.append(arrival)
                continue
            at, end = 0, len(frames)
            try:
                while at < end:
                    place = at + route.partition_offset
                    partition = frames[place] << 8 | frames[place + 1] if place + 2 <= end else -1
                    index = route.indexes.get(partition) or self._index_of(route, partition)
                    stored = None
                    if index is not None:
                        change = changes.get(index)
                        next_index = index.next_index if change is None else change.next_index
                        stored = store_run(
                            frames,
                            at,
                            route.alike,
                            partition,
                            next_index,
                            term,
                            now_ms,
                            position,
                            synced_position,
                            buffers,
                        )
                    if stored is None:
                        key = route_key(frames, at)
                        other = find_route(connection, key) if key != route.key else None  # of another topic
                        if other is None or not other.is_plain:
                            break
                        route = connection.route = other
                        continue
                    assert index is not None
                    if change is None:
                        change = changes[index] = _Change(route.topic)
                    began = at
                    at, size, message_count, change.next_index, requests, entries, answers = stored
                    position += size
                    change.entries.append(entries)
                    change.message_count += message_count
                    change.size += size
                    traced = route.traced
                    if traced is not None and traced is not change.sender:
                        change.sender = traced
                        change.senders.append((traced, next_index, buffers[-1]))
                    if route.is_flush:
                        turn.flushed.append(RunReply(connection, position, answers, route, requests, at - began, now))
                    else:
                        runs.append((connection, answers, route, requests))
                    turn.requests_bytes += len(requests)
            except Exception as error:  # a bug: told to the peer, as any other
                failed.append(Failed(connection, frames, at, error))
                continue
            if at < end:
                left.append((connection, frames[at:]) if at else arrival)
            connection.heard_ms = monotonic_ms
        if changes:
            turn.position = position
            self._commit(turn, now)
        return left, failed

    def _index_of(self, route: ProduceRoute, partition: int) -> PartitionIndex | None:
        """The index of a partition that is ours and has messages; kept with the route, which ends before it does."""
        index = self._group.index_of(route.topic_number, partition) if partition in route.partitions else None
        if index is not None:
            route.indexes[partition] = index
        return index

    def _commit(self, turn: "_Turn", now: Now) -> None:
        group, metrics = self._group, self._metrics
        for index, change in turn.changes.items():
            metrics.messages_in[change.topic] += change.next_index - index.next_index
            metrics.bytes_in[change.topic] += change.size - HEADER_BYTES * len(change.entries)
        metrics.requests["PRODUCE_MESSAGE"] += turn.requests_bytes // REQUEST_BYTES
        size = turn.position - group.journal.end_position
        group.put(
            turn.buffers,
            size,
            [(index, b"".join(one.entries), one.message_count, one.next_index) for index, one in turn.changes.items()],
            now.wall_ms,
        )
        if turn.runs:
            self._waiters.park(TurnReply(turn.runs, turn.position, size, metrics, now))
        for reply in turn.flushed:
            self._waiters.park(reply)
        if self._ledger.tracing.topics:
            self._trace(turn, now.wall_ms)

    def _trace(self, turn: "_Turn", now_ms: int) -> None:
        """Say who has sent what, those in a row together."""
        stored, end_position = self._ledger.tracing.stored, turn.position
        for index, change in turn.changes.items():
            after = change.next_index
            if len(change.senders) == 1:  # as nearly always
                sender, first, messages = change.senders[0]
                stored(sender, end_position, index.partition, first, after, messages, now_ms)
                continue
            ends = [*(first for _, first, _ in change.senders[1:]), after]
            for (sender, first, messages), end in zip(change.senders, ends, strict=False):
                stored(sender, end_position, index.partition, first, end, messages, now_ms)


class _Change:
    """What a turn adds to one partition."""

    __slots__ = ("entries", "message_count", "next_index", "sender", "senders", "size", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.entries: list[bytes] = []  # of each record
        self.message_count = self.next_index = self.size = 0
        self.sender: Subject | None = None  # of the last run, if that is to be traced
        self.senders: list[tuple[Subject, int, Buffer]] = []  # with their first index and messages


class _Turn:
    """What a turn adds to the journal, before it is there."""

    __slots__ = ("buffers", "changes", "flushed", "position", "requests_bytes", "runs")

    def __init__(self, position: int) -> None:
        self.position = position  # where it ends
        self.buffers: list[Buffer] = []  # header and messages of each record in turn
        self.changes: dict[PartitionIndex, _Change] = {}
        self.runs: list[tuple[Connection, bytes, ProduceRoute, bytes]] = []
        self.flushed: list[RunReply] = []  # those that wait for a sync
        self.requests_bytes = 0


def store_run_python(
    view: memoryview,
    at: int,
    alike: Alike,
    partition: int,
    first_index: int,
    term: int,
    now_ms: int,
    position: int,
    synced_position: int,
    buffers: list[Buffer],
) -> Stored | None:
    """The requests from `at` on that are alike and name that partition, as a record for that position of the journal.

    Its header and messages are added to `buffers`. None: not even one, and nothing has happened. This is the definition
    of the compiled `store_run`.
    """
    head, prefix, suffix, topic_string, address, topic, bytes_max, _ = alike
    place = at + REQUEST_HEADER_BYTES + len(prefix) + _PARTITION_IN_FIRST
    if view[place : place + 2] != partition.to_bytes(2, "big"):  # before anything is moved
        return None
    run = cut_run(view, at, head, prefix, suffix, bytes_max)
    if run is None:
        return None
    messages = view[run.start : run.stop]
    header, entries, next_index = make_record(
        messages, run.message_count, partition, first_index, term, now_ms, topic, position, synced_position, address
    )
    buffers += (header, messages)
    answers = run_acks(messages, run.requests, topic_string, head, now_ms)
    return run.end, len(header) + len(messages), run.message_count, next_index, run.requests, entries, answers

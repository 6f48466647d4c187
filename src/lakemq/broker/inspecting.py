"""INSPECT: what the broker knows, as JSON, a page at a time. For programs that look at many topics.

A page is a list of rows in order, from behind a place on; the place of its last row is what to go on after. So nothing
is kept between two pages, and what changes meanwhile may be seen or not.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from lakemq.broker.access import Access
from lakemq.broker.answers import answer
from lakemq.broker.changes import owner_name
from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.sessions import Connection
from lakemq.cluster.metadata import Subscription, Topic
from lakemq.errors import BadParameterError, ConsumerNotFoundError, TopicNotFoundError
from lakemq.wire.header import Header
from lakemq.wire.own import Inspect, InspectAck

CLUSTER, GROUPS, DELIVERIES = "cluster", "groups", "deliveries"
ROWS_MAX = 1000
_BYTES_MAX = 256 << 10

_PARTITION, _DONE, _LENT, _RETRY, _DEAD = range(5)  # the sections of an app's rows, in order
_START = -1, -1, -1


class Row(NamedTuple):
    """One thing to tell of an app: the section it is in, its place there, and what it is."""

    section: int
    first: int
    second: int
    value: Any

    @property
    def place(self) -> tuple[int, int, int]:
        """Where to go on after it."""
        return self.section, self.first, self.second


class Inspecting:
    """Answers INSPECT."""

    def __init__(self, ledger: Ledger, config: BrokerConfig, access: Access, consuming: Consuming) -> None:
        self._ledger = ledger
        self._config = config
        self._access = access
        self._consuming = consuming

    def inspect(self, connection: Connection, header: Header, command: Inspect, now: Now) -> None:
        """One page."""
        connection.check_app(command.app, self._config.admin_app)
        count = min(command.count, ROWS_MAX) if command.count > 0 else ROWS_MAX
        if command.what == CLUSTER:
            body, after = self._cluster(connection, command.after, count)
        elif command.what == GROUPS:
            body, after = self._groups(connection, command, count)
        elif command.what == DELIVERIES:
            body, after = self._deliveries(connection, command, count)
        else:
            raise BadParameterError(f"{command.what!r} cannot be inspected; {CLUSTER}, {GROUPS} and {DELIVERIES} can")
        answer(connection, header, InspectAck(0, after, json.dumps(body, separators=(",", ":")).encode()), now)

    def _sees_all(self, connection: Connection) -> bool:
        config = self._config
        return config.creates_missing or connection.app in (config.admin_app, owner_name(config.archive.app))

    def _may_read(self, connection: Connection, topic: Topic) -> bool:
        """Whether that app itself, without a group, would get messages of the topic."""
        known = self._ledger.metadata.subscription(topic.name, connection.app)
        is_consumer = known is not None and known.consumer is not None
        return topic.is_readable and (is_consumer or self._config.creates_missing)

    # --- topics ------------------------------------------------------------------------------------------------

    def _cluster(self, connection: Connection, after: str, count: int) -> tuple[dict[str, Any], str]:
        metadata = self._ledger.metadata
        names = sorted(metadata.topics)
        if not self._sees_all(connection):
            mine = {one.topic for one in metadata.subscriptions.values() if owner_name(one.app) == connection.app}
            names = [name for name in names if name in mine]
        names = names[bisect_right(names, after) :]
        page = names[:count]
        topics = [
            {
                "name": topic.name,
                "number": topic.number,
                "type": topic.type,
                "partitions": topic.partition_count,
                "is_archived": topic.is_archived,
                "is_readable": self._may_read(connection, topic),
            }
            for topic in map(metadata.topics.__getitem__, page)
        ]
        told = {"cluster": metadata.cluster, "archive_app": self._config.archive.app, "topics": topics}
        return told, page[-1] if len(names) > count else ""

    def _topic(self, connection: Connection, name: str) -> Topic:
        topic = self._ledger.metadata.topics.get(connection.full_topic(name))
        if topic is None:
            raise TopicNotFoundError(f"there is no topic {name!r}")
        return topic

    def _groups(self, connection: Connection, command: Inspect, count: int) -> tuple[dict[str, Any], str]:
        """Who receives from a topic, and no more of them than their names."""
        topic = self._topic(connection, command.topic)
        names = [one.app for one in self._consumers(connection, topic)]
        names = names[bisect_right(names, command.after) :]
        page = names[:count]
        return {"topic": topic.name, "groups": page}, page[-1] if len(names) > count else ""

    # --- what has become of messages -----------------------------------------------------------------------------

    def _deliveries(self, connection: Connection, command: Inspect, count: int) -> tuple[dict[str, Any], str]:
        topic = self._topic(connection, command.topic)
        consumers = self._consumers(connection, topic)
        after_app, place = _place_of(command.after)
        apps: list[dict[str, Any]] = []
        size = 0
        for one in consumers[bisect_left(consumers, after_app, key=lambda one: one.app) :]:
            shown: dict[str, Any] = {"app": one.app, "partitions": [], "retries": [], "dead": []}
            known: dict[int, dict[str, Any]] = {}
            apps.append(shown)
            rows = self._rows(topic, one, place if one.app == after_app else _START)
            for row in islice(rows, count):
                _show(shown, known, row)
                count -= 1
                size += len(json.dumps(row.value)) + 2
                if not count or size > _BYTES_MAX:
                    return {"topic": topic.name, "apps": apps}, _after(one.app, row.place)
        return {"topic": topic.name, "apps": apps}, ""

    def _consumers(self, connection: Connection, topic: Topic) -> list[Subscription]:
        """Who receives from a topic, by name, as far as whoever asks may know."""
        metadata = self._ledger.metadata
        found = [
            one
            for one in metadata.subscriptions.values()
            if one.topic == topic.name and one.consumer is not None and not self._access.is_archive(topic, one.app)
        ]
        if not self._sees_all(connection):
            found = [one for one in found if owner_name(one.app) == connection.app]
            if not found:
                raise ConsumerNotFoundError(f"app {connection.app!r} receives nothing from topic {topic.name!r}")
        return sorted(found, key=lambda one: one.app)

    def _rows(self, topic: Topic, one: Subscription, after: tuple[int, int, int]) -> Iterator[Row]:
        """All of an app's rows behind that place."""
        return (row for row in self._all_rows(topic, one, after) if row.place > after)

    def _all_rows(self, topic: Topic, one: Subscription, after: tuple[int, int, int]) -> Iterator[Row]:
        """The same, and some before it."""
        state = self._ledger.state
        led = self._access.led_partitions(topic)
        if after[0] <= _PARTITION:
            for partition in led:
                first, index, visible = self._ledger.stand(topic.number, partition, one.number)
                shown = {"partition": partition, "first_index": first, "visible_index": visible, "ack_index": index}
                yield Row(_PARTITION, partition, 0, shown)
        if after[0] <= _DONE:
            for partition in led:
                for run in state.acks.beyond(one.number, partition):
                    yield Row(_DONE, partition, run[0], run)
        if after[0] <= _LENT:
            lending = self._consuming.known_lending(one)
            for partition in led:
                for lease in lending.loans.leases(partition) if lending is not None else ():
                    for run in lease.open:
                        yield Row(_LENT, partition, run[0], run)
        if after[0] <= _RETRY:
            for row in sorted(state.retries.of(one.number)):
                yield Row(
                    _RETRY,
                    row.id,
                    0,
                    {
                        "partition": row.partition,
                        "index": row.message_index,
                        "attempts": row.attempts,
                        "due_ms": row.due_ms,
                    },
                )
        for letter in state.dead_letters.rows():
            if letter.subscription == one.number:
                yield Row(
                    _DEAD,
                    letter.id,
                    0,
                    {
                        "id": letter.id,
                        "partition": letter.partition,
                        "index": letter.message_index,
                        "cause": letter.cause,
                        "reason": letter.reason,
                        "attempts": letter.attempts,
                        "died_ms": letter.died_ms,
                    },
                )


def _show(shown: dict[str, Any], known: dict[int, dict[str, Any]], row: Row) -> None:
    """Add a row to what is shown of its app; `known` has what is shown of its partitions."""
    if row.section == _RETRY:
        shown["retries"].append(row.value)
        return
    if row.section == _DEAD:
        shown["dead"].append(row.value)
        return
    one = known.get(row.first)
    if one is None:  # of runs the first part may have been on an earlier page
        one = known[row.first] = {"partition": row.first, "done": [], "lent": []}
        shown["partitions"].append(one)
    if row.section == _PARTITION:
        one |= row.value
    else:
        one["done" if row.section == _DONE else "lent"].append(row.value)


def _after(app: str, place: tuple[int, int, int]) -> str:
    return ":".join((app, *map(str, place)))


def _place_of(after: str) -> tuple[str, tuple[int, int, int]]:
    """What `_after` made; BadParameterError if it is not that."""
    if not after:
        return "", _START
    app, *numbers = after.split(":")
    try:
        section, first, second = map(int, numbers)
    except ValueError:
        raise BadParameterError(f"{after!r} is not where a page ended") from None
    return app, (section, first, second)

"""A running broker as its operators have it: what they may ask, and what is read for them, from other threads.

Joins `serve.Service`, which knows nothing of HTTP, with `world.admin_http`, which knows nothing of brokers.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from lakemq.broker.core import Broker
from lakemq.broker.metrics import DURATION_BOUNDS_MS
from lakemq.cluster.metadata import Metadata, Subscription
from lakemq.serve import Service
from lakemq.world.prometheus import Histogram, Lag, Reading

LAG_PARTITIONS_MAX = 2000  # looked at in one turn of the broker's loop: a few milliseconds

_Key = TypeVar("_Key", tuple[str, str], tuple[str, str, str])


class Operated:
    """What `world.admin_http` asks for, answered by a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def ask(self, action: str, **arguments: Any) -> "Future[Any]":
        """An operator's action; broker/admin.py has them."""
        return self._service.ask(action, **arguments)

    def read(self) -> "Future[Reading]":
        """Every counter and gauge but the lags."""
        return self._service.look(lambda broker: reading_of(broker, self._service.loop_lag_seconds))

    def lag_pages(self) -> "Iterator[Future[list[Lag]]]":
        """The lags of all groups, in pages small enough not to hold up messages."""
        assert self._service.broker is not None
        metadata = self._service.broker.ledger.metadata  # never changed, only replaced: good from any thread
        page: list[Subscription] = []
        partition_count = 0
        for subscription in metadata.subscriptions.values():
            if subscription.consumer is not None:
                page.append(subscription)
                partition_count += metadata.topics[subscription.topic].partition_count
            if partition_count >= LAG_PARTITIONS_MAX:
                yield self._service.look(partial(lags_of, page))
                page, partition_count = [], 0
        if page:
            yield self._service.look(partial(lags_of, page))


def reading_of(broker: Broker, loop_lag_seconds: float = 0.0) -> Reading:
    """A copy of what is counted; to be called on the broker's thread."""
    metrics, metadata, state = broker.metrics, broker.ledger.metadata, broker.ledger.state
    journal = broker.ledger.group.journal
    topics = metadata.topics
    return Reading(
        broker=broker.config.broker_id,
        messages_in={topic: count for topic, count in metrics.messages_in.items() if topic in topics},
        bytes_in={topic: count for topic, count in metrics.bytes_in.items() if topic in topics},
        messages_out=_subscribed(metrics.messages_out, metadata),
        bytes_out=_subscribed(metrics.bytes_out, metadata),
        settled=_subscribed(metrics.settled, metadata),
        requests=dict(metrics.requests),
        errors=dict(metrics.errors),
        capped=dict(metrics.capped),
        syncs=Histogram(DURATION_BOUNDS_MS, tuple(metrics.syncs.counts), metrics.syncs.sum_ms),
        synced_messages=metrics.synced_messages,
        connections_opened=metrics.connections_opened,
        bugs=metrics.bugs,
        events_dropped=broker.ledger.tracing.dropped_count,
        connections=len(broker.sessions.connections),
        parked_polls=broker.consuming.deadlines.waiting,
        in_flight_bytes=sum(one.in_flight_bytes for one in broker.sessions.connections.values()),
        unsynced_bytes=journal.unsynced_bytes,
        journal_bytes=journal.end_position - journal.first_position,
        topics=len(topics),
        apps=len(metadata.apps),
        subscriptions=len(metadata.subscriptions),
        partitions=sum(topic.partition_count for topic in topics.values()),
        retries=len(state.retries),
        dead_letters=len(state.dead_letters),
        delays=state.delays.pending,
        transactions=len(state.transactions.open),
        archive_lags=broker.archiving.lags(),
        lateness=Histogram(DURATION_BOUNDS_MS, tuple(broker.delaying.lateness.counts), broker.delaying.lateness.sum_ms),
        loop_lag_seconds=loop_lag_seconds,
    )


def _subscribed(counts: Mapping[_Key, int], metadata: Metadata) -> dict[_Key, int]:
    """Only what belongs to a subscription that is still there: a series goes with its group."""
    return {key: count for key, count in counts.items() if key[:2] in metadata.subscriptions}


def lags_of(subscriptions: Sequence[Subscription], broker: Broker) -> list[Lag]:
    """How far these groups have still to go, those that are still there; to be called on the broker's thread."""
    ledger = broker.ledger
    group, acks = ledger.group, ledger.state.acks
    lags = []
    for subscription in subscriptions:
        topic = ledger.metadata.topics.get(subscription.topic)
        if topic is None or ledger.metadata.subscription(subscription.topic, subscription.app) is None:
            continue
        lag = 0
        for partition in broker.access.led_partitions(topic):
            first = group.first_index(topic.number, partition)
            index = max(acks.get(subscription.number, partition), first)
            lag += group.visible_index(topic.number, partition) - index
        lags.append(Lag(subscription.topic, subscription.app, lag))
    return lags

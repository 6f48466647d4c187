"""What the archive was told, held against what happened: the events of messages (I16)."""

from collections import Counter
from collections.abc import Iterable

from lakemq.delivery.trace_record import Event, EventKind
from lakemq.testing.actor_archiver import Archiver
from lakemq.testing.history import AppKey, History, PartitionKey, violate
from lakemq.testing.invariants import FinalState
from lakemq.testing.plan import Plan

# After these an app is elsewhere than its acks say, or is another one.
_MOVES = ("seek", "unsubscribe", "drop topic", "subscribe", "resend dead", "limit app")


def check_events(history: History, final: FinalState, archiver: Archiver, plan: Plan) -> None:
    """Each message was produced once, in a run without crashes exactly once; what was settled was delivered and acked.

    And nothing is said to be acked that nobody acked.
    """
    events = [event for index in sorted(archiver.events) for event in archiver.events[index]]
    archived = {topic.name for topic in plan.topics if topic.is_archived} - history.dropped
    produced = _places(events, EventKind.PRODUCED)
    is_calm = _is_calm(history, plan)
    history.counts["calm archives"] += is_calm
    for key, read in final.partitions.items():
        if key[0] not in archived:
            continue
        for index in range(read.first_index, read.end_index):
            count = produced[key, index]
            if count > 1 or (is_calm and not count):
                violate("I16", f"{key}/{index} was produced {count} times, by its events")
    _check_acks(history, events)
    if is_calm and not any(history.counts[f"fault {kind}"] for kind in _MOVES) and not history.counts["seeks"]:
        _check_settled(history, final, events, archived)


def _is_calm(history: History, plan: Plan) -> bool:
    """Whether nothing was lost with a process, nor refused by the disk."""
    counts = history.counts
    ends = (
        "died by kill",
        "died by power",
        "failed",
        "refused turns",
        "stop failed",
        "start refused",
        "events refused",
    )
    return not any(counts[name] for name in ends) and plan.final_fault in ("", "stop")


def _check_settled(history: History, final: FinalState, events: list[Event], archived: set[str]) -> None:
    """What a consumer was lent and has acked says so."""
    delivered, acked = _by_app(events, EventKind.DELIVERED), _by_app(events, EventKind.ACKED)
    dead = {(key, row.message_index) for key, row in final.dead}
    for key in final.ack_indexes:
        topic, _, partition = key
        read = final.partitions.get((topic, partition))
        if topic not in archived or read is None:
            continue
        standing = history.standing(key)
        for index in range(read.first_index, read.end_index):
            if index not in standing.acked or index not in standing.delivered or (key, index) in dead:
                continue
            history.counts["settled by events"] += 1
            if (key, index) not in delivered:
                violate("I16", f"{key}/{index} is settled, and no event says that it was delivered")
            if (key, index) not in acked and not _may_be_left_out(history, key, index):
                violate("I16", f"{key}/{index} is settled, and no event says that it was acked")


def _may_be_left_out(history: History, key: AppKey, index: int) -> bool:
    """Whether it may be done with by a filter that came after it was lent, and not by its ack.

    An ack comes to nothing behind a message that failed, where order is kept, or long after its lease. Of one that was
    surely taken, from whoever surely had the message, the event must be there, whatever filters say.
    """
    if index in history.standing(key).done_ms:
        return False
    topic, app, partition = key
    return history.rules_of(topic, app).may_leave_out(
        history.payloads[history.seen[topic, partition][index]].attributes
    )


def _check_acks(history: History, events: Iterable[Event]) -> None:
    """No event says acked of what nobody has acked."""
    for key, index in sorted(_by_app(events, EventKind.ACKED)):
        if index not in history.standing(key).acked:
            violate("I16", f"{key}/{index} was acked, by its events, and nobody did so")


def _places(events: Iterable[Event], kind: EventKind) -> Counter[tuple[PartitionKey, int]]:
    return Counter(
        ((event.topic, event.partition), index)
        for event in events
        if event.kind == kind
        for index in range(event.first_index, event.first_index + event.index_count)
    )


def _by_app(events: Iterable[Event], kind: EventKind) -> set[tuple[AppKey, int]]:
    return {
        ((event.topic, event.app, event.partition), index)
        for event in events
        if event.kind == kind
        for index in range(event.first_index, event.first_index + event.index_count)
    }

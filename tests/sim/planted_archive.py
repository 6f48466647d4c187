"""Bugs of archiving to plant: the mark, and the events of messages. `tests/planted.py` lists them."""

from lakemq.broker.acks import Acking
from lakemq.broker.archiving import Archiving
from lakemq.broker.tracing import Tracing


def is_archived(plan):
    return bool(plan.archive_gap_ms)


def drops_early(plan):
    return bool(plan.archive_gap_ms) and plan.broker.retention.size_bytes == 1


def is_archived_in_peace(plan):
    return bool(plan.archive_gap_ms) and plan.final_fault in ("", "stop")


def mark_ignored_by_retention(patch):
    patch.setattr(Archiving, "needed_position", lambda self: self._group.journal.end_position)


def mark_ahead_of_what_was_read(patch):
    seek = Acking.seek

    def further(self, name, app, now, partition, index):
        end = self._group.visible_index(self._ledger.metadata.topics[name].number, partition)
        return seek(self, name, app, now, partition, end if app == self._config.archive.app else index)

    patch.setattr(Acking, "seek", further)


def events_of_a_run_lost(patch):
    stored = Tracing.stored

    def seldom(self, sender, end_position, partition, first, *rest):
        if first % 5 != 3:
            stored(self, sender, end_position, partition, first, *rest)

    patch.setattr(Tracing, "stored", seldom)


def event_counted_twice(patch):
    stored = Tracing.stored

    def twice(self, *run):
        stored(self, *run)
        stored(self, *run)

    patch.setattr(Tracing, "stored", twice)


def events_of_a_refused_turn_kept(patch):
    turn_ended = Tracing.turn_ended
    patch.setattr(Tracing, "turn_ended", lambda self, written_position, now: turn_ended(self, 1 << 62, now))


def acks_of_retries_not_noted(patch):
    patch.setattr(Tracing, "_retry_over", lambda self, *_: None)


def deliveries_not_noted(patch):
    patch.setattr(Tracing, "delivered", lambda self, *_: None)

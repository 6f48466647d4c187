"""Events that do not tell what happened, in small histories: the checker must say so, and only then."""

from types import SimpleNamespace

import pytest

from lakemq.delivery.trace_record import Event, EventKind
from lakemq.message import Qos
from lakemq.testing.archived import check_events
from lakemq.testing.facts import Said
from lakemq.testing.history import CarrierOf, History, ViolationError
from lakemq.testing.invariants import FinalState, PartitionRead

KEY = ("t", "app", 0)
PLAN = SimpleNamespace(topics=[SimpleNamespace(name="t", is_archived=True)], final_fault="")


def event(kind, first, count):
    return Event(0, first, count, 1, 0, 0, 1, "t", "app" if kind != EventKind.PRODUCED else "p", "", "", kind)


class Story:
    """Two messages of an archived, ordered topic, both lent to an app whose filter is another one later."""

    def __init__(self, *, filters=("", "red")):
        self.history = history = History()
        history.ordered.add("t")
        history.rules_of("t", "app").filters = set(filters)
        self.found = []
        for index in range(2):
            number, body = history.make_payload("p", "t", "k", b"", {"TAGS": "blue"})
            history.send("p", 1, "t", Qos.FLUSH, [CarrierOf((number,))], -1, 0)
            self.found.append(history.body_of("t", 0, index, body))
        history.lent(KEY, 1, self.found, 10, 1000, is_over=False)

    def say(self, *outcomes, is_taken=()):
        """What the consumer says of each, and which of them were surely its own and are done with."""
        asked = self.history.ask(KEY)
        said = [Said(one, outcome) for one, outcome in zip(self.found, outcomes, strict=True)]
        self.history.say(KEY, said, 20)
        self.history.acked(KEY, asked, is_taken, may_be_ignored=False)
        self.history.done_for_good(KEY, asked, is_taken, 30)

    def check(self, *, delivered=(0, 1), acked=()):
        events = [event(EventKind.PRODUCED, 0, 2)]
        events += [event(EventKind.DELIVERED, index, 1) for index in delivered]
        events += [event(EventKind.ACKED, index, 1) for index in acked]
        final = FinalState({("t", 0): PartitionRead(0, [0, 1])}, {KEY: 2})
        check_events(self.history, final, SimpleNamespace(events={0: events}), PLAN)


def wrong(text):
    return pytest.raises(ViolationError, match=f"^I16: .*{text}")


def test_events_that_tell_it_all_pass():
    story = Story()
    story.say(0, 0, is_taken=(0, 1))
    story.check(acked=(0, 1))


def test_an_ack_behind_a_failure_came_to_nothing_and_a_filter_may_do_with_the_message_later():
    """The first failed, so both came again; by then the app wanted neither."""
    story = Story()
    story.say(1, 0)
    story.check()
    story.check(acked=(1,))  # or the filter came after it had been lent and acked again


@pytest.mark.parametrize("filters", [(), ("",), ("", "*"), ("", "red || blue")])
def test_without_a_filter_that_leaves_it_out_only_an_ack_does_with_a_message(filters):
    story = Story(filters=filters)
    story.say(1, 0)
    with wrong("/1 is settled, and no event says that it was acked"):
        story.check()


def test_an_ack_that_was_surely_taken_has_an_event_whatever_filters_say():
    story = Story()
    story.say(0, 0, is_taken=(0, 1))
    with wrong("/1 is settled, and no event says that it was acked"):
        story.check(acked=(0,))


def test_what_a_filter_leaves_out_later_was_delivered_all_the_same():
    story = Story()
    story.say(1, 0)
    with wrong("/1 is settled, and no event says that it was delivered"):
        story.check(delivered=(0,))


def test_no_event_says_acked_of_what_nobody_acked():
    story = Story()
    story.say(1, 0)
    with wrong("/0 was acked, by its events, and nobody did so"):
        story.check(acked=(0, 1))


def test_nor_in_a_run_that_was_not_calm():
    story = Story()
    story.history.counts["died by kill"] = 1
    story.say(1, 0)
    with wrong("/0 was acked, by its events, and nobody did so"):
        story.check(acked=(0, 1))
    story.check(delivered=())

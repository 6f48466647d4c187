"""Which retry is due, who has it: against a model that looks at all of them."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lakemq.delivery.retry_queue import RetryQueue
from lakemq.delivery.retry_schedule import LEVELS_MS, retry_delay_ms
from lakemq.delivery.settlement import Retry

IDS = st.integers(1, 6)
CONSUMERS = st.sampled_from([7, 8])


class RetryQueueModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.queue = RetryQueue()
        self.due = {}
        self.lent = {}  # id -> consumer, end
        self.held = {}  # the same, or None
        self.now_ms = 0

    @rule(number=IDS, pause_ms=st.integers(0, 50))
    def put(self, number, pause_ms):
        self.queue.put(number, self.now_ms + pause_ms)
        self.due[number] = self.now_ms + pause_ms
        self.lent.pop(number, None)
        self.held.pop(number, None)

    @rule(number=IDS)
    def be_over(self, number):
        self.queue.remove(number)
        self.due.pop(number, None)
        self.lent.pop(number, None)
        self.held.pop(number, None)

    @rule(number=IDS)
    def hold(self, number):
        self.queue.hold(number)
        self.due.pop(number, None)
        lease = self.lent.pop(number, None)
        if number not in self.held:
            self.held[number] = lease

    @rule(number=IDS, pause_ms=st.integers(0, 50))
    def give_back(self, number, pause_ms):
        self.queue.give_back(number, self.now_ms + pause_ms)
        lease = self.lent.get(number) or self.held.pop(number, None)
        if lease is not None:
            self.lent[number] = lease
        else:
            self.due[number] = self.now_ms + pause_ms

    @rule(consumer=CONSUMERS, lease_ms=st.integers(1, 40))
    def lend(self, consumer, lease_ms):
        number = self.queue.take_due(self.now_ms)
        ready = {one for one, due_ms in self.due.items() if due_ms <= self.now_ms}
        if number is None:
            assert not ready, "one is due, and none comes"
            return
        assert number in ready, "early, or in two hands"
        assert self.due[number] == min(self.due[one] for one in ready), "the one that has waited longest comes first"
        del self.due[number]
        self.queue.lend(number, consumer, self.now_ms + lease_ms)
        self.lent[number] = consumer, self.now_ms + lease_ms

    @rule(passed_ms=st.integers(1, 30))
    def time_passes(self, passed_ms):
        self.now_ms += passed_ms
        over = [number for number, (_, end_ms) in self.lent.items() if end_ms <= self.now_ms]
        assert sorted(self.queue.take_expired(self.now_ms)) == sorted(over)
        for number in over:
            del self.lent[number]

    @rule(consumer=CONSUMERS, more_ms=st.integers(1, 50))
    def extend(self, consumer, more_ms):
        mine = [number for number, (one, _) in self.lent.items() if one == consumer]
        assert self.queue.extend(consumer, self.now_ms + more_ms) == bool(mine)
        for number in mine:
            self.lent[number] = consumer, self.now_ms + more_ms

    @rule(consumer=CONSUMERS)
    def leave(self, consumer):
        mine = [number for number, (one, _) in self.lent.items() if one == consumer]
        assert self.queue.release_all(consumer, self.now_ms) == bool(mine)
        for number in mine:
            del self.lent[number]
            self.due[number] = self.now_ms
        self.held = {number: lease if lease and lease[0] != consumer else None for number, lease in self.held.items()}

    @invariant()
    def is_what_the_model_says(self):
        assert self.queue.next_due_ms() == min(self.due.values(), default=None)
        assert self.queue.lent_count == len(self.lent)
        assert self.queue.held_count == len(self.held)
        for number in range(1, 7):
            assert self.queue.holder(number) == (self.lent[number][0] if number in self.lent else None)


TestRetryQueue = RetryQueueModel.TestCase
TestRetryQueue.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_it_begins_with_rows_of_which_none_is_lent():
    rows = [Retry(number, 1, 1, 0, number, 0, 1, due_ms, 0, "") for number, due_ms in ((1, 30), (2, 10))]
    queue = RetryQueue(rows)
    assert queue.lent_count == 0
    assert [queue.take_due(30) for _ in range(3)] == [2, 1, None]


def test_old_entries_do_not_pile_up():
    queue = RetryQueue()
    for due_ms in range(5000):
        queue.put(1, due_ms)
    assert len(queue._heap) < 200


def test_pauses_as_the_schedules_say():
    power = [retry_delay_ms("power", attempt, 3_600_000) for attempt in range(1, 7)]
    assert power == [1000, 3000, 9000, 27_000, 81_000, 243_000]
    assert retry_delay_ms("power", 500, 3_600_000) == 3_600_000
    assert [retry_delay_ms("power", one, 10**9, first_ms=100, factor=2) for one in (1, 2, 3, 4)] == [100, 200, 400, 800]
    assert [retry_delay_ms("power", one, 10**9, first_ms=7, factor=1) for one in (1, 2, 99)] == [7, 7, 7]
    levels = [retry_delay_ms("levels", attempt, 10**9) for attempt in range(1, 19)]
    assert levels == [*LEVELS_MS, 7_200_000, 7_200_000]
    assert levels[:4] == [10_000, 30_000, 60_000, 120_000]
    assert retry_delay_ms("levels", 3, 15_000) == 15_000

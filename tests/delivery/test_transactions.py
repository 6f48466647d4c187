"""Transactions as a fold: against a model, through snapshots, restarts and turns that are taken back."""

from types import SimpleNamespace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from lakemq.delivery.transactions import (
    NewPart,
    Outcome,
    Part,
    Transaction,
    Transactions,
    owner_of,
    pack_carried,
    pack_note,
    pack_outcome,
    pack_put,
)

COMMITTED, ROLLED_BACK = Outcome.COMMITTED, Outcome.ROLLED_BACK
APPS = ("shop", "店.group")


class Disk:
    """Records in the order in which they were made; those of a turn that failed are gone."""

    def __init__(self):
        self.records = []
        self.position = 0

    def append(self, kind, topic, now_ms, payload):
        position, self.position = self.position, self.position + 100 + len(payload)
        self.records.append((kind, topic, now_ms, bytes(payload), position))
        return position

    def replay(self, into, start=0):
        for kind, topic, now_ms, payload, position in self.records[start:]:
            if kind == "note":
                into.apply_note(payload, position)
            else:
                into.apply(SimpleNamespace(topic=topic, store_time_ms=now_ms), memoryview(payload), position)

    def read(self, part):
        (payload,) = [one[3] for one in self.records if one[4] == part.position]
        return payload[part.offset : part.offset + part.size]


class TransactionsModel(RuleBasedStateMachine):
    """What was put in comes out once and whole, or never; whatever is lost and made again from the records."""

    ids = Bundle("ids")

    def __init__(self):
        super().__init__()
        self.disk = Disk()
        self.state = Transactions(decided_max=5, decided_ms=1000)
        self.base = b"", 0  # a snapshot, and how many records it stands for
        self.undo = []  # of the turn under way
        self.turn = 0  # records that are written for good
        self.now_ms = 1000
        self.count = 0
        self.model = {}  # id → what was put in, in order
        self.outcomes = {}  # id → outcome
        self.delivered = {}  # id → what came out
        self.saved = self.copy()

    def copy(self):
        return (
            {key: list(value) for key, value in self.model.items()},
            dict(self.outcomes),
            {key: list(value) for key, value in self.delivered.items()},
        )

    @initialize()
    def begin_with_nothing(self):
        assert self.state.pack() == b""

    def is_open(self, tx_id):
        return tx_id in self.model and tx_id not in self.outcomes

    def put_record(self, tx_id, bodies, **details):
        new = [NewPart(nth % 3, 1, 2, body) for nth, body in enumerate(bodies)]
        payload, offsets = pack_put(tx_id, new, address=b"a" * 16, **details)
        position = self.disk.append("put", 7, self.now_ms, payload)
        return [
            Part(one.partition, 1, 2, len(one.messages), position, offset, b"a" * 16)
            for one, offset in zip(new, offsets, strict=True)
        ]

    # --- what happens ------------------------------------------------------------------------------------------

    @rule(target=ids, app=st.sampled_from(APPS), own=st.sampled_from(["", "a", "b"]), bodies=st.lists(st.binary()))
    def begin(self, app, own, bodies):
        if own and self.state.find_own(7, app, own) is not None:
            return multiple()
        self.count += 1
        tx_id = f"tx-{self.count}"
        details = {"begins": True, "app": app, "timeout_ms": 50, "transaction_id": own, "number": 0}
        parts = self.put_record(tx_id, bodies, **details)
        self.undo.append(self.state.begin(Transaction(tx_id, 7, app, self.now_ms, 50)))
        self.undo.append(self.state.put(tx_id, parts, own, is_numbered=True))
        self.model[tx_id] = list(bodies)
        return tx_id

    @rule(tx_id=ids, bodies=st.lists(st.binary(), min_size=1), is_numbered=st.booleans())
    def put(self, tx_id, bodies, is_numbered):
        if not self.is_open(tx_id):
            return
        parts = self.put_record(tx_id, bodies, number=1 if is_numbered else -1)
        self.undo.append(self.state.put(tx_id, parts, is_numbered=is_numbered))
        self.model[tx_id] += bodies

    @rule(tx_id=ids, outcome=st.sampled_from(Outcome))
    def decide(self, tx_id, outcome):
        """The record alone: the parts come later, or after a restart."""
        if not self.is_open(tx_id):
            return
        self.disk.append("outcome", 7, self.now_ms, pack_outcome(tx_id, outcome))
        self.undo.append(self.state.decide(tx_id, outcome, self.now_ms))
        self.outcomes[tx_id] = outcome

    @rule(tx_id=ids)
    def commit_by_one_record(self, tx_id):
        if not self.is_open(tx_id) or not self.model[tx_id]:
            return
        parts = self.state.open[tx_id].parts
        owner = self.state.open[tx_id].owner
        self.delivered[tx_id] = [self.disk.read(part) for part in parts]
        self.disk.append("note", 7, self.now_ms, pack_note(tx_id, (), owner, self.now_ms, commits=True))
        self.undo.append(self.state.commit_whole(tx_id, owner, self.now_ms))
        self.outcomes[tx_id] = COMMITTED

    @rule(body=st.binary(), app=st.sampled_from(APPS))
    def begin_and_commit_by_one_record(self, body, app):
        self.count += 1
        tx_id, owner = f"tx-{self.count}", owner_of(7, app)
        self.disk.append("note", 7, self.now_ms, pack_note(tx_id, (), owner, self.now_ms, commits=True))
        self.undo.append(self.state.commit_whole(tx_id, owner, self.now_ms))
        self.model[tx_id], self.delivered[tx_id], self.outcomes[tx_id] = [body], [body], COMMITTED

    @rule(bodies=st.lists(st.binary()), app=st.sampled_from(APPS))
    def begin_and_commit_many(self, bodies, app):
        self.count += 1
        tx_id = f"tx-{self.count}"
        parts = self.put_record(tx_id, bodies, begins=True, commits=True, app=app, timeout_ms=5, number=0)
        self.undo.append(self.state.begin(Transaction(tx_id, 7, app, self.now_ms, 5)))
        self.undo.append(self.state.put(tx_id, parts, is_numbered=True))
        self.undo.append(self.state.decide(tx_id, COMMITTED, self.now_ms))
        self.model[tx_id], self.outcomes[tx_id] = list(bodies), COMMITTED

    @rule(data=st.data())
    def deliver_some(self, data):
        unfinished = self.state.unfinished()
        if not unfinished:
            return
        transaction, missing = data.draw(st.sampled_from(unfinished), label="whose")
        numbers = missing[: data.draw(st.integers(1, len(missing)), label="how many")]
        out = self.delivered.setdefault(transaction.tx_id, [])
        out += [self.disk.read(transaction.parts[number]) for number in numbers]
        self.disk.append("note", 7, self.now_ms, pack_note(transaction.tx_id, numbers))
        self.undo.append(self.state.deliver(transaction.tx_id, numbers))

    @rule()
    def carry(self):
        for tx_id, number, part in self.state.carry(self.disk.position):
            payload, offset = pack_carried(tx_id, number, part, self.disk.read(part))
            position = self.disk.append("carried", 7, self.now_ms, payload)
            self.undo.append(self.state.move(tx_id, number, position, offset))
        assert not self.state.carry(self.disk.records[0][4] + 1 if self.disk.records else 0) or self.disk.records

    @rule(spent_ms=st.integers(0, 600))
    def time_passes(self, spent_ms):
        self.now_ms += spent_ms

    # --- turns, crashes ----------------------------------------------------------------------------------------

    @rule()
    def end_turn(self):
        self.undo.clear()
        self.turn = len(self.disk.records)
        self.saved = self.copy()

    @rule()
    def fail_turn(self):
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()
        del self.disk.records[self.turn :]
        self.model, self.outcomes, self.delivered = self.saved
        self.saved = self.copy()

    @rule()
    def take_snapshot(self):
        self.base = self.state.pack(), len(self.disk.records)
        self.end_turn()

    @rule()
    def restart(self):
        """What is made of a snapshot and the records behind it is what was there."""
        self.end_turn()
        twin = Transactions(decided_max=5, decided_ms=1000)
        twin.restore(self.base[0])
        self.disk.replay(twin, self.base[1])
        assert twin.open == self.state.open
        assert twin.unfinished() == self.state.unfinished()
        assert twin.part_count == self.state.part_count
        self.state = twin

    # --- what always holds ---------------------------------------------------------------------------------------

    @invariant()
    def those_are_open_that_were_begun_and_not_decided(self):
        assert set(self.state.open) == {tx_id for tx_id in self.model if tx_id not in self.outcomes}
        for tx_id, transaction in self.state.open.items():
            assert [self.disk.read(part) for part in transaction.parts] == self.model[tx_id]
            assert transaction.size == sum(map(len, self.model[tx_id]))
            assert transaction in self.state.open_of(7, transaction.app)
            if transaction.transaction_id:
                assert self.state.find_own(7, transaction.app, transaction.transaction_id) == tx_id
        assert sum(self.state.count(7, app) for app in APPS) == len(self.state.open)
        assert self.state.part_count == sum(len(one.parts) for one in self.state.open.values())

    @invariant()
    def what_comes_out_was_committed_and_went_in(self):
        for tx_id, out in self.delivered.items():
            assert self.outcomes.get(tx_id) is COMMITTED
            assert out == self.model[tx_id][: len(out)]

    @invariant()
    def what_is_missing_is_what_did_not_come_out(self):
        missing = {one.tx_id: len(numbers) for one, numbers in self.state.unfinished()}
        for tx_id, outcome in self.outcomes.items():
            left = len(self.model[tx_id]) - len(self.delivered.get(tx_id, ())) if outcome is COMMITTED else 0
            assert missing.pop(tx_id, 0) == left
        assert not missing

    @invariant()
    def an_outcome_is_told_as_it_was(self):
        told = {tx_id: self.state.decided(tx_id) for tx_id in self.model}
        for tx_id, decided in told.items():
            if decided is not None:
                assert decided.outcome is self.outcomes[tx_id]
        assert sum(decided is not None for decided in told.values()) <= 5

    def teardown(self):
        """Whatever happened, each can still be ended, and what was committed comes out whole."""
        for tx_id in list(self.state.open):
            self.decide(tx_id, COMMITTED)
            assert self.state.decided(tx_id).outcome is COMMITTED
        for transaction, numbers in self.state.unfinished():
            out = self.delivered.setdefault(transaction.tx_id, [])
            out += [self.disk.read(transaction.parts[number]) for number in numbers]
            self.state.deliver(transaction.tx_id, numbers)
        assert self.state.unfinished() == []
        for tx_id, outcome in self.outcomes.items():
            assert self.delivered.get(tx_id, []) == (self.model[tx_id] if outcome is COMMITTED else [])


TestTransactions = TransactionsModel.TestCase
TestTransactions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_last_so_many_outcomes_are_remembered():
    state = Transactions(decided_max=3, decided_ms=1000)
    for nth in range(5):
        state.commit_whole(str(nth), owner_of(1, "shop"), nth)
    assert [state.decided(str(nth)) is not None for nth in range(5)] == [False, False, True, True, True]
    state.commit_whole("late", owner_of(1, "shop"), 1003)
    assert [state.decided(str(nth)) is not None for nth in range(5)] == [False, False, False, True, True]
    twin = Transactions(3, 1000)
    twin.restore(state.pack())
    assert twin.pack() == state.pack()
    assert twin.decided("late") == (COMMITTED, 1003, owner_of(1, "shop"))


def test_what_is_not_delivered_after_all_is_still_before_what_was_committed_later():
    state = Transactions()
    for name in ("first", "second", "third"):
        parts = [Part(0, 1, 1, 1, 0, 0), Part(1, 1, 1, 1, 0, 1)]
        state.commit_new(Transaction(name, 7, "shop", 0, 50, parts=parts), 0)
    before = state.unfinished()
    undos = [state.deliver("second", [1]), state.deliver("first", [0, 1]), state.deliver("second", [0])]
    assert [one.tx_id for one, _ in state.unfinished()] == ["third"]
    for undo in reversed(undos):
        undo()
    assert state.unfinished() == before


def test_whose_one_was_is_told_by_topic_and_app():
    assert owner_of(1, "shop") not in (owner_of(2, "shop"), owner_of(1, "other"))


def test_records_of_a_transaction_whose_beginning_is_gone_change_nothing():
    state = Transactions()
    facts = SimpleNamespace(topic=1, store_time_ms=1)
    for payload in (
        pack_put("gone", [NewPart(0, 1, 1, b"x")])[0],
        pack_outcome("gone", COMMITTED),
        pack_carried("gone", 0, Part(0, 1, 1, 1, 0, 0), b"x")[0],
    ):
        state.apply(facts, payload, 50)
    state.apply_note(pack_note("gone", [0]), 60)
    assert state.pack() == b""

"""Transactions: all messages together or none, one outcome for ever, and what becomes of those that nobody decides."""

import contextlib
import itertools
from random import Random

import pytest

from broker.fix_broker import (
    DOCUMENTED,
    EIO,
    FULL,
    JOYQUEUE,
    TINY,
    block_of,
    make_broker,
)
from lakemq.delivery.transactions import Outcome, TransactionLimits, pack_outcome
from lakemq.storage.config import StorageConfig
from lakemq.storage.journal_record import RecordType
from lakemq.storage.retention import RetentionPolicy
from lakemq.testing.disk import PowerLost
from lakemq.wire.own import FetchTransactions, Transact, TransactOutcome
from lakemq.wire.produce import (
    FetchProduceFeedback,
    ProduceMessageCommit,
    ProduceMessagePrepare,
    ProduceMessageRollback,
)
from lakemq.wire.session import AddProducer

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
DIALECTS = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)
COMMIT, OPEN = TransactOutcome.COMMIT, TransactOutcome.OPEN


def limited(**limits):
    return {"transactions": TransactionLimits(**limits)}


class Shop:
    """A producer that may begin transactions."""

    def __init__(self, life, dialect=DOCUMENTED, app="shop", topics=("orders",)):
        self.life = life
        self.peer = life.peer(app, dialect)
        self.app = app
        self.ids = itertools.count(1)
        answer = self.peer.ask(AddProducer(topics, app))
        assert answer.status == 0, answer

    def prepare_answer(self, own_id="", timeout_ms=0, topic="orders", app=None):
        return self.peer.ask(ProduceMessagePrepare(topic, app or self.app, 1, own_id, timeout_ms))

    def prepare(self, own_id="", timeout_ms=0, **details):
        body = self.prepare_answer(own_id, timeout_ms, **details).body
        assert body.code == 0, body
        return body.tx_id

    def prepare_code(self, *arguments, **details):
        answer = self.prepare_answer(*arguments, **details)
        return answer.status or answer.body.code

    def put(self, tx_id, *bodies, partition=0, **details):
        code, results = self.peer.produce(*bodies, partition=partition, tx_id=tx_id, **details)
        if code == 0:
            assert [(one.partition, one.index) for one in results] == [(partition, -1)] * len(results)
        return code

    def commit(self, tx_id, topic="orders", app=None):
        answer = self.peer.ask(ProduceMessageCommit(topic, app or self.app, tx_id))
        return answer.status or answer.body.code

    def rollback(self, tx_id, topic="orders", app=None):
        answer = self.peer.ask(ProduceMessageRollback(topic, app or self.app, tx_id))
        return answer.status or answer.body.code

    def feedback_command(self, count=10, wait_ms=0, topic="orders", app=None):
        return FetchProduceFeedback(app or self.app, topic, 0, count, wait_ms)

    def feedback(self, **details):
        """The own ids of those offered, or the code."""
        return offered(self.peer.ask(self.feedback_command(**details)))

    def transact_command(self, *parts, tx_id=None, own_id="", timeout_ms=0, number=0, outcome=COMMIT, **details):
        blocks = tuple(block_of(*bodies, partition=partition, **details) for partition, bodies in parts)
        name = tx_id or f"mine-{next(self.ids)}"
        return Transact("orders", self.app, name, own_id, timeout_ms, number, outcome, blocks)

    def transact(self, *parts, **details):
        """The code."""
        return self.peer.ask(self.transact_command(*parts, **details)).status

    def listed(self, **details):
        answer = self.peer.ask(FetchTransactions("orders", self.app, **details))
        return answer.status or [one.transaction_id for one in answer.body.transactions]


def offered(answer):
    return answer.status or answer.body.code or [one.transaction_id for one in answer.body.transactions]


def stored(life, partitions=2):
    return [body for partition in range(partitions) for body in life.stored(partition=partition)]


@pytest.fixture
def life():
    return make_broker()


@pytest.fixture
def shop(life):
    return Shop(life)


# --- all together or none -------------------------------------------------------------------------------------------


@DIALECTS
def test_messages_are_seen_when_committed_and_not_before(life, dialect):
    shop = Shop(life, dialect)
    tx_id = shop.prepare()
    assert shop.put(tx_id, b"one", b"two") == 0
    assert shop.put(tx_id, b"three", partition=1) == 0
    life.pass_ms(1000)
    assert stored(life) == []
    assert life.appended() == 0
    assert shop.commit(tx_id) == 0
    assert life.stored() == [b"one", b"two"]
    assert life.stored(partition=1) == [b"three"]
    consumer = life.peer().consumes()
    assert sorted(consumer.fetch(count=10) + consumer.fetch(count=10)) == [b"one", b"three", b"two"]


@DIALECTS
def test_what_is_rolled_back_is_never_seen(life, dialect):
    shop = Shop(life, dialect)
    tx_id = shop.prepare()
    assert shop.put(tx_id, b"one") == 0
    assert shop.rollback(tx_id) == 0
    assert stored(life) == []
    life.restart()
    assert stored(life) == []


def test_a_batch_takes_as_many_indexes_as_it_has_messages(life, shop):
    tx_id = shop.prepare()
    assert shop.put(tx_id, (b"a", b"b", b"c"), b"d") == 0
    assert shop.commit(tx_id) == 0
    assert life.stored() == [b"a", b"b", b"c", b"d"]
    assert life.appended() == 4


def test_messages_of_one_partition_keep_their_order_whatever_lies_between(life, shop):
    tx_id = shop.prepare()
    for body in (b"1", b"2", b"3"):
        assert shop.put(tx_id, body) == 0
        assert shop.put(tx_id, body, partition=1) == 0
    shop.peer.produce(b"between")
    assert shop.commit(tx_id) == 0
    assert life.stored() == [b"between", b"1", b"2", b"3"]
    assert life.stored(partition=1) == [b"1", b"2", b"3"]


def test_an_empty_transaction_may_be_committed(life, shop):
    assert shop.commit(shop.prepare()) == 0
    assert stored(life) == []


def test_prepare_put_and_commit_may_arrive_in_one_piece(life, shop):
    tx_id = shop.prepare()
    peer = shop.peer
    ids = peer.send_all(
        peer.produce_command(b"a", tx_id=tx_id),
        peer.produce_command(b"b", tx_id=tx_id, partition=1),
        ProduceMessageCommit("orders", "shop", tx_id),
    )
    life.settle()
    assert [peer.received(one).status for one in ids] == [0, 0, 0]
    assert stored(life) == [b"a", b"b"]


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_outcome_is_answered_when_it_is_durable_and_not_before(life, shop, outcome):
    tx_id = shop.prepare()
    shop.put(tx_id, b"one")
    command = (ProduceMessageCommit if outcome == "commit" else ProduceMessageRollback)("orders", "shop", tx_id)
    request_id = shop.peer.send(command)
    life.engine.end_turn()
    assert shop.peer.received(request_id) is None
    assert life.engine.tickets, "somebody waits for a sync"
    life.settle()
    assert shop.peer.received(request_id).body.code == 0


def test_prepare_is_answered_when_it_is_durable_and_not_before(life, shop):
    request_id = shop.peer.send(ProduceMessagePrepare("orders", "shop", 1, "order-1"))
    life.engine.end_turn()
    assert shop.peer.received(request_id) is None
    life.settle()
    assert shop.peer.received(request_id).body.tx_id


# --- one outcome ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["nothing", "restart", "kill", "power"])
def test_the_same_outcome_again_is_told_again_and_the_opposite_is_refused(life, again):
    shop = Shop(life)
    committed, rolled_back = shop.prepare(), shop.prepare("mine")
    shop.put(committed, b"one")
    shop.put(rolled_back, b"two")
    assert shop.commit(committed) == 0
    assert shop.rollback(rolled_back) == 0
    if again != "nothing":
        {"restart": life.restart, "kill": life.kill, "power": life.lose_power}[again]()
        shop = Shop(life)
    for _ in range(2):
        assert shop.commit(committed) == 0
        assert shop.rollback(committed) == 139
        assert shop.rollback(rolled_back) == 0
        assert shop.commit(rolled_back) == 139
    assert life.stored() == [b"one"]


def test_the_same_outcome_again_is_told_no_sooner_than_the_first_is_durable(life, shop):
    tx_id = shop.prepare()
    shop.put(tx_id, b"one")
    first = shop.peer.send(ProduceMessageCommit("orders", "shop", tx_id))
    again = shop.peer.send(ProduceMessageCommit("orders", "shop", tx_id))
    life.engine.end_turn()
    assert shop.peer.received(first) is None
    assert shop.peer.received(again) is None
    life.settle()
    assert shop.peer.received(again).body.code == 0
    assert life.stored() == [b"one"]


@pytest.mark.parametrize("tx_id", ["", "0-1-40-0", "x" * 5000])
def test_nobody_knows_a_transaction_that_was_never_begun(shop, tx_id):
    assert shop.commit(tx_id) == 138
    assert shop.rollback(tx_id) == 138
    if tx_id:
        assert shop.put(tx_id, b"one") == 138


def test_a_transaction_that_has_ended_takes_no_more_messages(shop):
    tx_id = shop.prepare()
    assert shop.commit(tx_id) == 0
    assert shop.put(tx_id, b"late") == 138


def test_a_transaction_is_of_one_topic_and_one_app():
    life = make_broker(topics=("orders", "bills"))
    life.ask("create_app", name="other")
    life.ask("add_token", name="other", token_id="first", token="a token of shop")
    life.ask("subscribe", topic="orders", app="other", producer={})
    shop = Shop(life, topics=("orders", "bills"))
    tx_id = shop.prepare()
    assert shop.put(tx_id, b"one", topic="bills") == 138
    assert shop.commit(tx_id, topic="bills") == 138
    assert shop.commit(tx_id, topic="nowhere") == 138
    other = Shop(life, app="other")
    assert other.put(tx_id, b"one") == 138
    assert other.commit(tx_id) == 138
    assert other.rollback(tx_id) == 138
    assert other.commit(tx_id, app="shop") == 132
    assert shop.commit(tx_id) == 0
    assert other.commit(tx_id) == 138


def test_ids_are_never_given_twice(life, shop):
    seen = set()
    for _ in range(3):
        for _ in range(5):
            seen.add(shop.prepare())
        life.kill()
        shop = Shop(life)
    assert len(seen) == 15


def test_so_many_outcomes_are_remembered_and_no_more():
    life = make_broker(**limited(decided_max=2))
    life.broker.ledger.state.transactions._decided_max = 2
    shop = Shop(life)
    ids = [shop.prepare() for _ in range(3)]
    for tx_id in ids:
        assert shop.commit(tx_id) == 0
    assert [shop.commit(tx_id) for tx_id in ids] == [138, 0, 0]


def test_an_outcome_is_forgotten_after_a_day(life, shop):
    old = shop.prepare()
    assert shop.commit(old) == 0
    life.pass_ms(DAY_MS + 1)
    shop = Shop(life)
    assert shop.commit(shop.prepare()) == 0
    assert shop.commit(old) == 138


# --- what is refused ------------------------------------------------------------------------------------------------


def test_prepare_needs_add_producer(life):
    peer = life.peer()
    assert peer.ask(ProduceMessagePrepare("orders", "shop", 1)).status == 134


def test_the_app_must_be_the_connections_own(shop):
    assert shop.prepare_answer(app="other").status == 132
    assert shop.commit("x", app="other") == 132
    assert shop.rollback("x", app="other") == 132
    assert shop.feedback(app="other") == 132


def test_an_own_id_may_be_open_once(shop):
    first = shop.prepare("order-1")
    assert shop.prepare_code("order-1") == 137
    assert shop.prepare("order-2")
    assert shop.rollback(first) == 0
    assert shop.prepare("order-1") != first


def test_only_so_many_may_be_open():
    life = make_broker(topics=("orders", "bills"), **limited(open_max=2))
    shop = Shop(life, topics=("orders", "bills"))
    first = shop.prepare()
    shop.prepare()
    assert shop.prepare_code() == 148
    assert shop.prepare_code(topic="bills") == 0
    assert shop.commit(first) == 0
    assert shop.prepare_code() == 0
    assert life.capped["transactions"] == 1


def test_only_so_many_may_be_open_in_all():
    life = make_broker(topics=("orders", "bills"), **limited(open_total_max=2))
    shop = Shop(life, topics=("orders", "bills"))
    shop.prepare()
    shop.prepare(topic="bills")
    assert shop.prepare_code() == 148


def test_a_transaction_may_have_only_so_many_parts_and_bytes():
    life = make_broker(**limited(parts_max=2, bytes_max=1000, parts_total_max=3))
    shop = Shop(life)
    tx_id, other = shop.prepare(), shop.prepare()
    assert shop.put(tx_id, b"x" * 2000) == 6
    assert shop.put(tx_id, b"1") == 0
    assert shop.put(tx_id, b"2", partition=1) == 0
    assert shop.put(tx_id, b"3") == 6
    assert shop.put(other, b"4") == 0
    assert shop.put(other, b"5") == 148
    assert shop.commit(tx_id) == 0
    assert stored(life) == [b"1", b"2"]
    assert shop.put(other, b"5") == 0


@pytest.mark.parametrize("name", ["DELIVER_AT", "DELAY_LEVEL"])
def test_a_message_that_is_to_wait_cannot_be_part_of_one(life, shop, name):
    tx_id = shop.prepare()
    assert shop.put(tx_id, b"one", attributes={name: "3"}) == 6
    assert shop.transact((0, [b"one"]), attributes={name: "3"}) == 6
    assert shop.commit(tx_id) == 0
    assert stored(life) == []


def test_a_partition_must_be_there(shop):
    tx_id = shop.prepare()
    assert shop.put(tx_id, b"one", partition=7) == 188
    assert shop.transact((7, [b"one"])) == 188


def test_an_own_id_is_not_longer_than_it_may_be(shop):
    assert shop.prepare_code("x" * 501) == 6


def test_nothing_is_begun_while_the_broker_stops(life, shop):
    tx_id = shop.prepare()
    shop.put(tx_id, b"one")
    life.broker.access.is_draining = True
    assert shop.prepare_code() == 3
    assert shop.put(tx_id, b"two") == 3
    assert shop.commit(tx_id) == 0, "what is under way may be finished"


def test_a_dropped_topic_takes_its_transactions_with_it(life, shop):
    tx_id = shop.prepare("order-1")
    shop.put(tx_id, b"one")
    life.ask("drop_topic", name="orders")
    assert shop.commit(tx_id) == 138
    life.pass_ms(DAY_MS + 1)
    assert life.broker.ledger.state.transactions.open == {}
    assert life.broker.metrics.bugs == 0


# --- time-outs and feedback -----------------------------------------------------------------------------------------


def test_without_an_own_id_a_transaction_ends_with_its_time(life, shop):
    tx_id, longer = shop.prepare(), shop.prepare(timeout_ms=20 * MINUTE_MS)
    shop.put(tx_id, b"one")
    life.pass_ms(10 * MINUTE_MS - 1)
    assert shop.put(tx_id, b"two") == 0
    life.pass_ms(1)
    assert shop.put(tx_id, b"three") == 138
    assert shop.commit(tx_id) == 139, "it was rolled back"
    assert shop.rollback(tx_id) == 0
    assert shop.commit(longer) == 0
    assert shop.feedback() == []
    assert stored(life) == []


def test_with_an_own_id_it_is_offered_after_its_time_and_may_still_be_decided(life, shop):
    kept, lost = shop.prepare("kept", 1000), shop.prepare("lost", 1000)
    shop.put(kept, b"one")
    shop.put(lost, b"two")
    assert shop.feedback() == []
    life.pass_ms(1000)
    assert stored(life) == [], "its time is over, and still nobody has decided"
    assert shop.feedback() == ["kept", "lost"]
    assert shop.put(kept, b"late") == 138
    assert shop.commit(kept) == 0
    assert shop.rollback(lost) == 0
    assert life.stored() == [b"one"]
    life.pass_ms(2 * MINUTE_MS)
    assert shop.feedback() == []


def test_each_is_offered_at_most_once_a_minute(life, shop):
    shop.prepare("order-1", 1000)
    life.pass_ms(1000)
    assert shop.feedback() == ["order-1"]
    life.pass_ms(MINUTE_MS - 1)
    assert shop.feedback() == []
    life.pass_ms(1)
    assert shop.feedback() == ["order-1"]


def test_any_producer_of_the_app_is_asked(life, shop):
    tx_id = shop.prepare("order-1", 1000)
    shop.put(tx_id, b"one")
    shop.peer.pipe.hang_up()
    life.pass_ms(1000)
    other = Shop(life)
    assert other.feedback() == ["order-1"]
    assert other.commit(tx_id) == 0
    assert life.stored() == [b"one"]


@DIALECTS
def test_as_many_are_offered_as_are_asked_for(life, dialect):
    shop = Shop(life, dialect)
    for nth in range(12):
        shop.prepare(f"order-{nth:02}", 1000)
    life.pass_ms(1000)
    assert len(shop.feedback(count=10)) == 10
    assert shop.feedback(count=10) == ["order-10", "order-11"]


def test_a_poll_waits_until_there_is_one_to_offer(life, shop):
    shop.prepare("order-1", 5000)
    polls = [shop.peer.send(shop.feedback_command(wait_ms=30_000)) for _ in range(2)]
    life.pass_ms(4999)
    assert shop.peer.received(polls[0]) is None
    life.pass_ms(1)
    assert offered(shop.peer.received(polls[0])) == ["order-1"]
    assert shop.peer.received(polls[1]) is None
    life.pass_ms(24_999)
    assert shop.peer.received(polls[1]) is None
    life.pass_ms(1)
    assert offered(shop.peer.received(polls[1])) == []
    assert shop.peer.connection.parked_polls == 0


def test_a_poll_hears_of_one_again_after_a_minute(life, shop):
    shop.prepare("order-1", 1000)
    life.pass_ms(1000)
    assert shop.feedback() == ["order-1"]
    life.pass_ms(MINUTE_MS // 2)
    poll = shop.peer.send(shop.feedback_command(wait_ms=MINUTE_MS))
    life.pass_ms(MINUTE_MS // 2 - 1)
    assert shop.peer.received(poll) is None
    life.pass_ms(1)
    assert offered(shop.peer.received(poll)) == ["order-1"]


def test_what_is_offered_to_nobody_is_offered_to_the_next(life, shop):
    shop.prepare("order-1", 1000)
    gone = Shop(life)
    gone.peer.send(gone.feedback_command(wait_ms=30_000))
    gone.peer.pipe.hang_up()
    life.pass_ms(1000)
    assert shop.feedback() == ["order-1"]


def test_polls_are_answered_when_the_broker_stops(life, shop):
    poll = shop.peer.send(shop.feedback_command(wait_ms=30_000))
    life.broker.access.is_draining = True
    life.pass_ms(1)
    assert offered(shop.peer.received(poll)) == []


def test_only_so_many_polls_wait():
    life = make_broker(limits_of={"parked_polls_per_connection_max": 1})
    shop = Shop(life)
    shop.peer.send(shop.feedback_command(wait_ms=30_000))
    assert shop.feedback(wait_ms=30_000) == []
    assert life.capped["parked_polls_per_connection"] == 1


def test_polls_that_are_over_leave_nothing_behind(life, shop):
    shop.peer.send(shop.feedback_command(wait_ms=1000))
    for _ in range(50):
        shop.peer.send(shop.feedback_command(wait_ms=1000))
        life.pass_ms(500)
        shop.peer.send(shop.feedback_command(wait_ms=1000))
        life.pass_ms(500)
    undecided = life.broker._transacting._undecided
    assert sum(map(len, undecided._parked.values())) <= 4
    life.pass_ms(1000)
    assert undecided._parked == {}
    assert shop.peer.connection.parked_polls == 0


def test_times_leave_nothing_behind(life, shop):
    for _ in range(200):
        assert shop.commit(shop.prepare("order-1")) == 0
    undecided = life.broker._transacting._undecided
    assert len(undecided._heap) <= 64
    assert undecided._timers == {}
    assert undecided._overdue == {}


def test_feedback_names_what_is_wrong(life, shop):
    life.ask("create_topic", name="bills", partitions=1)
    assert shop.feedback(topic="nowhere") == 189
    assert shop.feedback(topic="bills") == 134


def test_what_nobody_decides_within_a_day_is_rolled_back(life, shop):
    tx_id = shop.prepare("order-1", 1000)
    shop.put(tx_id, b"one")
    life.pass_ms(1000)
    assert shop.feedback() == ["order-1"]
    life.pass_ms(DAY_MS - 1001)
    shop = Shop(life)
    assert shop.feedback() == ["order-1"]
    life.pass_ms(1)
    assert shop.commit(tx_id) == 139
    assert shop.feedback() == []
    assert stored(life) == []
    assert shop.prepare("order-1") != tx_id


@pytest.mark.parametrize("again", ["restart", "kill"])
def test_time_goes_on_while_the_broker_is_down(life, shop, again):
    tx_id = shop.prepare("order-1", 10_000)
    anonymous = shop.prepare(timeout_ms=10_000)
    shop.put(tx_id, b"one")
    life.pass_ms(4000)
    {"restart": life.restart, "kill": life.kill}[again]()
    shop = Shop(life)
    life.pass_ms(1)
    assert shop.feedback() == []
    life.clock.pass_ms(5999)
    life.pass_ms(0)
    assert shop.feedback() == ["order-1"]
    assert shop.commit(anonymous) == 139
    assert shop.commit(tx_id) == 0
    assert life.stored() == [b"one"]


def test_F41_a_wall_clock_that_jumps_ends_no_transaction_early(life, shop):
    tx_id = shop.prepare()
    life.clock.jump_wall(DAY_MS)
    life.pass_ms(1000)
    assert shop.put(tx_id, b"one") == 0
    life.clock.jump_wall(-3 * DAY_MS)
    life.kill()
    shop = Shop(life)
    life.pass_ms(10 * MINUTE_MS - 1)
    assert shop.commit(tx_id) == 0


def test_F42_a_producer_dies_inside_a_transaction(life, shop):
    tx_id = shop.prepare("order-1", 1000)
    shop.peer.send(shop.peer.produce_command(b"one", tx_id=tx_id))
    shop.peer.pipe.hang_up()
    life.kill()
    other = Shop(life)
    life.pass_ms(1000)
    assert other.feedback() == ["order-1"]
    assert stored(life) == []
    assert other.rollback(tx_id) == 0
    assert stored(life) == []


def test_F47_a_time_out_races_a_commit(life, shop):
    first, second = shop.prepare(timeout_ms=1000), shop.prepare(timeout_ms=1000)
    shop.put(first, b"one")
    shop.put(second, b"two")
    life.clock.pass_ms(1000)
    request_id = shop.peer.send(ProduceMessageCommit("orders", "shop", first))  # before the tick that would end it
    life.engine.tick()
    life.settle()
    assert shop.peer.received(request_id).body.code == 0
    assert shop.commit(second) == 139
    assert life.stored() == [b"one"]


# --- TRANSACT: the client's own way -----------------------------------------------------------------------------------


def test_a_transaction_in_one_request(life, shop):
    assert shop.transact((0, [b"a", b"b"])) == 0
    assert shop.transact((0, [b"c"]), (1, [(b"d", b"e")])) == 0
    assert shop.transact() == 0
    assert life.stored() == [b"a", b"b", b"c"]
    assert life.stored(partition=1) == [b"d", b"e"]
    life.kill()
    assert stored(life) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("parts", [[(0, [b"a"])], [(0, [b"a"]), (1, [b"b"])], []], ids=["one", "two", "none"])
@pytest.mark.parametrize("again", ["nothing", "kill"])
def test_the_same_request_again_is_answered_again_and_not_stored_again(life, parts, again):
    shop = Shop(life)
    for _ in range(2):
        assert shop.transact(*parts, tx_id="mine") == 0
        if again == "kill":
            life.kill()
            shop = Shop(life)
    assert stored(life) == [body for _, bodies in parts for body in bodies]
    assert shop.rollback("mine") == 139
    assert shop.commit("mine") == 0


def test_a_transaction_in_several_requests(life, shop):
    assert shop.transact((0, [b"a"]), tx_id="mine", outcome=OPEN) == 0
    assert shop.transact((1, [b"b"]), tx_id="mine", outcome=OPEN, number=1) == 0
    assert shop.transact((1, [b"b"]), tx_id="mine", outcome=OPEN, number=1) == 0
    assert shop.transact((0, [b"a"]), tx_id="mine", outcome=OPEN) == 0
    assert shop.transact((0, [b"x"]), tx_id="mine", outcome=OPEN, number=3) == 6
    assert stored(life) == []
    assert shop.transact((0, [b"c"]), tx_id="mine", number=2) == 0
    assert shop.transact((0, [b"c"]), tx_id="mine", number=2) == 0
    assert stored(life) == [b"a", b"c", b"b"]
    assert shop.transact((0, [b"d"]), tx_id="mine", number=3, outcome=OPEN) == 138


def test_an_own_id_may_come_with_the_last_request(life, shop):
    assert shop.transact((0, [b"a"]), tx_id="mine", outcome=OPEN, timeout_ms=1000) == 0
    assert shop.listed() == []
    assert shop.transact((0, [b"b"]), tx_id="mine", outcome=OPEN, number=1, own_id="order-1") == 0
    assert shop.listed() == ["order-1"]
    life.kill()
    shop = Shop(life)
    assert shop.listed() == ["order-1"]
    assert shop.transact(tx_id="other", outcome=OPEN, own_id="order-1") == 137
    life.pass_ms(1000)
    assert shop.feedback() == ["order-1"]
    assert shop.commit("mine") == 0
    assert stored(life) == [b"a", b"b"]


def test_transact_refuses_what_is_not_its_own(life, shop):
    life.ask("create_app", name="other")
    life.ask("add_token", name="other", token_id="first", token="a token of shop")
    life.ask("subscribe", topic="orders", app="other", producer={})
    other = Shop(life, app="other")
    assert shop.transact((0, [b"a"]), tx_id="mine", outcome=OPEN) == 0
    assert other.transact((0, [b"b"]), tx_id="mine", outcome=OPEN, number=1) == 137
    assert shop.transact((0, [b"b"]), tx_id="unknown", number=1) == 138
    assert shop.transact((0, [b"b"]), tx_id="x" * 101) == 6
    assert shop.transact((0, [b"b"]), outcome=2) == 6
    assert shop.rollback("mine") == 0
    assert shop.transact((0, [b"b"]), tx_id="mine") == 139
    assert other.transact((0, [b"b"]), tx_id="mine") == 138
    assert stored(life) == []


def test_transact_needs_add_producer(life):
    peer = life.peer()
    assert peer.ask(Transact("orders", "shop", "mine")).status == 134


def test_open_ones_are_listed_in_order_and_in_pages(life, shop):
    for name in ("c", "a", "b", ""):
        shop.prepare(name)
    assert shop.listed() == ["a", "b", "c"]
    assert shop.listed(count=2) == ["a", "b"]
    assert shop.listed(after="b") == ["c"]
    answer = shop.peer.ask(FetchTransactions("nowhere", "shop"))
    assert answer.status == 189


def test_transact_counts_against_the_rate_of_the_app(life):
    life.ask("set_app", name="shop", produce_per_second=2)
    shop = Shop(life)
    assert shop.transact((0, [b"a", b"b", b"c"])) == 0
    assert shop.transact((0, [b"d"])) == 74


# --- ids of messages ------------------------------------------------------------------------------------------------


def with_id(body):
    return block_of(body, attributes={"UNIQ_ID": "1"}, app="shop")


@pytest.mark.parametrize("again", ["nothing", "kill"])
def test_the_ids_of_committed_messages_are_remembered(life, again):
    shop = Shop(life)
    tx_id = shop.prepare()
    assert shop.put(tx_id, (b"x", b"y"), b"z") == 0
    assert shop.put(tx_id, block=with_id(b"one")) == 0
    assert shop.commit(tx_id) == 0
    if again == "kill":
        life.kill()
        shop = Shop(life)
    code, results = shop.peer.produce(block=with_id(b"one"))
    assert (code, results[0].index) == (0, 3)
    tx_id = shop.prepare()
    assert shop.put(tx_id, block=with_id(b"one")) == 0
    assert shop.commit(tx_id) == 0
    assert shop.transact((0, [b"one"]), (1, [b"two"]), attributes={"UNIQ_ID": "1"}, app="shop") == 0
    assert stored(life) == [b"x", b"y", b"z", b"one"]


# --- the journal ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [FULL, EIO], ids=["full", "eio"])
def test_a_commit_that_cannot_be_written_has_not_happened(fault):
    life = make_broker()
    shop = Shop(life)
    tx_id = shop.prepare("order-1", 1000)
    shop.put(tx_id, b"one")
    shop.put(tx_id, b"two", partition=1)
    life.disk.fail("write", fault)
    assert shop.commit(tx_id) not in (0, 138, 139)
    if fault is EIO:
        life.kill()
        shop = Shop(life)
    assert stored(life) == []
    life.pass_ms(1000)
    assert shop.feedback() == ["order-1"]
    assert shop.commit(tx_id) == 0
    assert stored(life) == [b"one", b"two"]


def test_a_begun_one_that_cannot_be_written_has_not_begun(life, shop):
    life.disk.fail("write", FULL)
    assert shop.prepare_code("order-1") == 109
    assert shop.prepare_code("order-1") == 0
    life.disk.fail("write", FULL)
    assert shop.transact((0, [b"a"]), tx_id="mine", outcome=OPEN, own_id="order-2") == 109
    assert shop.transact((0, [b"a"]), tx_id="mine", outcome=OPEN, own_id="order-2") == 0
    life.disk.fail("write", FULL)
    assert shop.transact((0, [b"b"]), tx_id="mine", number=1) == 109
    assert shop.transact((0, [b"b"]), tx_id="mine", number=1) == 0
    assert stored(life) == [b"a", b"b"]


def test_messages_are_read_back_when_they_are_not_in_memory_any_more():
    life = make_broker(**limited(cache_bytes_max=100))
    shop = Shop(life)
    tx_id = shop.prepare()
    bodies = [bytes([65 + nth]) * 50 for nth in range(20)]
    for body in bodies:
        assert shop.put(tx_id, body) == 0
    assert life.broker._transacting._parts.cached_bytes <= 200
    assert shop.commit(tx_id) == 0
    assert life.stored() == bodies
    assert life.broker._transacting._parts.cached_bytes == 0


def test_a_transaction_outlives_the_segments_it_began_in():
    life = make_broker(storage=TINY, retention=RetentionPolicy(size_bytes=40_000))
    shop = Shop(life)
    tx_id = shop.prepare("order-1")
    assert shop.put(tx_id, b"one", b"two") == 0
    assert shop.put(tx_id, b"three", partition=1) == 0
    before = life.journal.end_position
    for _ in range(60):
        assert shop.peer.produce(b"x" * 3000)[0] == 0
    for _ in range(5):
        life.pass_ms(MINUTE_MS)
    assert life.broker.ledger.state.transactions.carry(before) == []
    assert life.journal.first_position > before
    life.kill()
    shop = Shop(life)
    assert shop.peer.produce(b"last")[0] == 0
    assert shop.commit(tx_id) == 0
    assert life.stored(partition=1) == [b"three"]
    assert life.stored()[-2:] == [b"one", b"two"]


# --- crashes --------------------------------------------------------------------------------------------------------

CRASH = StorageConfig(
    segment_bytes=16 << 10, record_bytes_max=8 << 10, checkpoint_bytes=4 << 10, unsynced_bytes_max=64 << 10
)


BODIES = [b"t-one", b"t-three", b"t-two"]


def crashed_at_each_call(prepare, act, filled, mode):
    """Lives that ended at every call of the disk while `act` ran; each with what it told, or None."""
    for at in itertools.count():
        life = make_broker(partitions=3, storage=CRASH)
        shop = Shop(life)
        for _ in range(filled // 1500):
            shop.peer.produce(b"x" * 1400)
        prepare(shop)
        life.disk.crash_after = life.disk.crash_points + at
        told = None
        with contextlib.suppress(PowerLost):
            told = act(shop)
        life.disk.lose_power(Random(at), mode=mode)
        life.start()
        life.settle()
        yield life, told
        if told is not None:
            assert at >= 2, "nothing was written"
            return


def seen(life):
    return sorted(body for body in stored(life, 3) if body.startswith(b"t"))


def _filled(filled):
    """The first of them in the quick run, too: the others differ in where a segment ends."""
    return pytest.param(filled, id=f"{filled}-before", marks=[pytest.mark.sim] if filled else [])


FILLED = pytest.mark.parametrize("filled", [_filled(filled) for filled in range(0, 15_000, 1500)])
MODES = pytest.mark.parametrize("mode", ["nothing", "torn", "subset", "everything"])


@FILLED
@MODES
def test_F46_a_crash_at_each_write_of_a_commit_leaves_one_outcome(filled, mode):
    """Wherever in a segment that is."""

    def prepare(shop):
        shop.tx_id = shop.prepare("order-1", 1000)
        tx_ids.append(shop.tx_id)
        assert [shop.put(shop.tx_id, body, partition=nth) for nth, body in enumerate(BODIES)] == [0, 0, 0]

    tx_ids = []
    for life, told in crashed_at_each_call(prepare, lambda shop: shop.commit(shop.tx_id), filled, mode):
        found = seen(life)
        assert found in ([], BODIES)
        assert told is None or found, "a commit that was confirmed is gone"
        shop = Shop(life)
        if found:
            assert shop.rollback(tx_ids[-1]) == 139
        assert shop.commit(tx_ids[-1]) == 0
        assert seen(life) == BODIES
        assert shop.rollback(tx_ids[-1]) == 139
        life.kill()
        assert seen(life) == BODIES


@FILLED
@MODES
def test_F46_a_crash_at_each_write_of_a_whole_transaction_leaves_all_or_nothing(filled, mode):
    parts = [(nth, [body]) for nth, body in enumerate(BODIES)]

    def act(shop):
        return shop.transact(*parts, tx_id="mine")

    for life, told in crashed_at_each_call(lambda shop: None, act, filled, mode):
        found = seen(life)
        assert found in ([], BODIES)
        assert told is None or found, "a commit that was confirmed is gone"
        shop = Shop(life)
        assert shop.transact(*parts, tx_id="mine") == 0, "sent again, because nobody knows"
        assert seen(life) == BODIES


@FILLED
def test_F46_a_crash_at_each_write_of_a_rollback_leaves_one_outcome(filled):
    tx_ids = []

    def prepare(shop):
        tx_ids.append(shop.prepare("order-1", 1000))
        assert [shop.put(tx_ids[-1], body, partition=nth) for nth, body in enumerate(BODIES)] == [0, 0, 0]

    for life, told in crashed_at_each_call(prepare, lambda shop: shop.rollback(tx_ids[-1]), filled, "torn"):
        assert seen(life) == []
        shop = Shop(life)
        code = shop.commit(tx_ids[-1])
        assert code in (0, 139)
        assert code == 139 or told is None
        assert seen(life) == ([] if code else BODIES)
        assert shop.rollback(tx_ids[-1]) == (0 if code else 139)


@FILLED
def test_F47_a_crash_while_the_rest_of_a_commit_is_stored(filled):
    """The start after the crash is cut off, too, at each of its writes."""
    life = make_broker(partitions=3, storage=CRASH)
    shop = Shop(life)
    for _ in range(filled // 1500):
        shop.peer.produce(b"x" * 1400)
    tx_id = shop.prepare("order-1", 1000)
    for nth, body in enumerate(BODIES):
        shop.put(tx_id, body, partition=nth)
    transactions = life.broker.ledger.state.transactions
    transaction = transactions.open[tx_id]
    deciding, now = life.broker._transacting._deciding, life.engine.now()
    _, end = life.broker.ledger.append(
        RecordType.TRANSACTION, pack_outcome(tx_id, Outcome.COMMITTED), now.wall_ms, topic=transaction.topic
    )  # and no more, as if the rest had not reached the disk
    deciding._decide(transaction, Outcome.COMMITTED, end, now)
    life.sync()
    base = life.disk.clone()
    for at in itertools.count():
        life.disk = base.clone()
        life.disk.crash_after = at
        try:
            life.start()
            life.settle()
            is_done = True
        except PowerLost:
            is_done = False
        life.disk.lose_power(Random(at), mode="torn")
        life.start()
        assert life.broker.ledger.state.transactions.unfinished() == []
        life.settle()
        assert seen(life) == BODIES
        if is_done:
            return

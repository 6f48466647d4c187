"""Transactions of both clients, against the real broker in memory."""

import asyncio
import contextlib
import threading

import pytest

from lakemq.broker.config import BrokerConfig
from lakemq.client.errors import ClosedError, ConnectionLostError
from lakemq.client.outgoing import Message
from lakemq.client.transact_frame import transact_frame
from lakemq.client.xa import Xid, make_xid, read_xid
from lakemq.delivery.transactions import TransactionLimits
from lakemq.embedded_door import PipeChannel
from lakemq.envelope import pack, unpack_all
from lakemq.errors import (
    BadParameterError,
    TooManyTransactionsError,
    TopicNotWritableError,
    TransactionCommitError,
    TransactionError,
    TransactionExistsError,
    TransactionNotFoundError,
)
from lakemq.message import BatchMessage
from lakemq.message import Message as PlainMessage
from lakemq.testing.broker import TestBroker
from lakemq.wire.commands import encode_request
from lakemq.wire.dialect import Form
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import Transact


@pytest.fixture
def broker():
    with TestBroker() as one:
        yield one


@pytest.fixture
def mq(broker):
    with broker.connect(app="shop", watcher=False) as client:
        yield client


def stored(broker, topic="orders"):
    """Bodies of all that may be read, straight from the store."""
    engine = broker.engine
    engine.settle()
    metadata = engine.broker.ledger.metadata
    known = metadata.topics.get(topic)
    found = []
    for partition in range(known.partition_count if known else 0):
        end = engine.group.visible_index(known.number, partition)
        for one in engine.group.read(known.number, partition, 0, end, 1 << 30) if end else ():
            found += bodies_in(bytes(one.messages))
    return sorted(found)


def bodies_in(data):
    found = []
    for value in unpack_all(data):
        found += [item.body for item in value.items] if isinstance(value, BatchMessage) else [value.body]
    return found


def open_count(broker):
    return len(broker.engine.broker.ledger.state.transactions.open)


# --- with ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_id", ["", "order-1"])
def test_a_block_that_ends_well_commits(broker, mq, own_id):
    with mq.transaction("orders", id=own_id, timeout="30s") as tx:
        receipt = tx.send({"id": 1}, key="c-7", tags="paid", headers={"v": "2"})
        tx.send_many([b"two", Message("three", key="c-8")])
        assert stored(broker) == []
        assert tx.state == "open"
    assert tx.state == "committed"
    assert (receipt.topic, receipt.offset, receipt.acks) == ("orders", None, "flush")
    assert stored(broker) == [b"three", b"two", b'{"id":1}']
    with mq.consumer("orders", group="g") as consumer:
        got = {one.body: one for one in consumer.receive(10) + consumer.receive(10)}
    first = got[b'{"id":1}']
    assert (first.key, first.tags, first.headers) == ("c-7", ("paid",), {"v": "2"})


@pytest.mark.parametrize("own_id", ["", "order-1"])
def test_a_block_that_raises_rolls_back(broker, mq, own_id):
    tx = mq.transaction("orders", id=own_id)
    with contextlib.suppress(ZeroDivisionError), tx:
        tx.send(b"one")
        raise ZeroDivisionError
    assert tx.state == "rolled back"
    assert stored(broker) == []
    assert open_count(broker) == 0


def test_without_an_id_of_ones_own_nothing_is_at_the_broker_before_the_commit(broker, mq):
    with mq.transaction("orders") as tx:
        tx.send(b"one")
        assert open_count(broker) == 0
    assert stored(broker) == [b"one"]


def test_with_an_id_each_message_is_durable_when_its_send_returns(broker, mq):
    tx = mq.transaction("orders", id="order-1")
    tx.send(b"one")
    tx.send(b"two")
    assert tx.id == "order-1"
    broker.cut_power()
    broker.restart()
    assert open_count(broker) == 1
    tx.commit()
    assert stored(broker) == [b"one", b"two"]


def test_much_is_sent_in_several_requests_and_still_seen_at_once(broker, mq):
    with mq.transaction("orders") as tx:
        for nth in range(7):
            tx.send(bytes([65 + nth]) * (1 << 20), partition=nth % 4, headers={"n": str(nth)})
        assert open_count(broker) == 1
        assert stored(broker) == []
    assert [len(body) for body in stored(broker)] == [1 << 20] * 7


def test_an_empty_transaction_asks_nobody(broker, mq):
    with mq.transaction("orders"):
        pass
    with mq.transaction("orders", id="order-1") as tx:
        tx.rollback()
    assert broker.engine.broker.metrics.requests["TRANSACT"] == 0


def test_it_may_be_ended_by_hand_and_only_once(broker, mq):
    with mq.transaction("orders", id="order-1") as tx:
        tx.send(b"one")
        tx.commit()
        tx.commit()
        with pytest.raises(TransactionCommitError):
            tx.rollback()
        with pytest.raises(TransactionNotFoundError):
            tx.send(b"two")
    with mq.transaction("orders") as tx:
        tx.send(b"three")
        tx.rollback()
        tx.rollback()
        with pytest.raises(TransactionCommitError):
            tx.commit()
    assert stored(broker) == [b"one"]


def test_messages_without_a_key_go_to_one_partition_and_others_to_their_own(mq):
    with mq.transaction("orders") as tx:
        anywhere = {tx.send(b"x").partition for _ in range(20)}
        by_key = {tx.send(b"x", key=str(nth)).partition for nth in range(20)}
        assert tx.send(b"x", partition=3).partition == 3
    assert len(anywhere) == 1
    assert len(by_key) == 4
    receipt = mq.send("orders", b"y", key="5")
    with mq.transaction("orders") as tx:
        assert tx.send(b"x", key="5").partition == receipt.partition


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_what_can_never_be_sent_is_refused_at_once(broker, mq):
    with mq.transaction("orders") as tx:
        with pytest.raises(BadParameterError, match="no partition 9"):
            tx.send(b"x", partition=9)
        with pytest.raises(BadParameterError, match="cannot wait"):
            tx.send_many([Message(b"x", delay="5s")])
        with pytest.raises(BadParameterError, match="a body is"):
            tx.send(7)
        tx.send(b"fine")
    assert stored(broker) == [b"fine"]


def test_the_same_id_twice_is_refused(mq):
    first = mq.transaction("orders", id="order-1")
    first.send(b"one")
    with pytest.raises(TransactionExistsError), mq.transaction("orders", id="order-1") as second:
        second.send(b"two")
    first.commit()


def test_too_many_are_refused():
    config = BrokerConfig(creates_missing=True, transactions=TransactionLimits(open_max=1))
    with TestBroker(config=config) as broker, broker.connect(app="shop") as mq:
        first = mq.transaction("orders", id="order-1")
        first.send(b"one")
        with pytest.raises(TooManyTransactionsError):
            mq.transaction("orders", id="order-2").send(b"two")
        first.commit()
        with mq.transaction("orders", id="order-2") as tx:
            tx.send(b"two")


def test_one_whose_time_is_over_cannot_be_committed_any_more(broker, mq):
    tx = mq.transaction("orders", timeout="1s")
    tx.send(b"x" * 5_000_000, headers={"large": "so that it leaves at once"}, partition=0)
    broker.advance("2s")
    with pytest.raises((TransactionCommitError, TransactionNotFoundError)):
        tx.commit()
    assert stored(broker) == []


def test_a_transaction_of_which_a_message_was_not_taken_cannot_be_committed(broker, mq):
    tx = mq.transaction("orders", id="order-1")
    tx.send(b"one")
    broker.ask("set_topic", name="orders", is_writable=False)
    with pytest.raises(TopicNotWritableError):
        tx.send(b"two")
    broker.ask("set_topic", name="orders", is_writable=True)
    with pytest.raises(TransactionCommitError, match="only be rolled back"):
        tx.commit()
    tx.rollback()
    assert stored(broker) == []


@pytest.mark.parametrize("own_id", ["", "order-1"])
def test_a_lost_answer_stores_nothing_twice(broker, mq, monkeypatch, own_id):
    """The connection is cut when the broker has taken a request, and before the client has its answer."""
    mq.send("orders", b"before")
    requests, receive = broker.engine.broker.metrics.requests, PipeChannel.receive
    cut = []

    def cut_or_receive(channel, timeout_ms):
        if requests["TRANSACT"] > len(cut) and len(cut) < 3:
            cut.append(channel)
            channel.pipe.hang_up()
            channel.pipe.sent.clear()
            raise ConnectionLostError("cut")
        return receive(channel, timeout_ms)

    monkeypatch.setattr(PipeChannel, "receive", cut_or_receive)
    with mq.transaction("orders", id=own_id) as tx:
        tx.send(b"one", partition=0)
        tx.send(b"two", partition=1)
    assert len(cut) == 3
    assert stored(broker) == [b"before", b"one", b"two"]


@pytest.mark.parametrize("own_id", ["", "order-1"])
def test_a_commit_goes_on_after_the_broker_was_down(broker, mq, own_id):
    tx = mq.transaction("orders", id=own_id)
    tx.send(b"one")
    broker.crash()
    with pytest.raises(Exception, match=r".") as told:
        tx.commit()
    assert told.value.retriable
    broker.restart()
    tx.commit()
    assert stored(broker) == [b"one"]


def test_a_closed_client_says_so(mq):
    tx = mq.transaction("orders")
    tx.send(b"one")
    mq.close()
    with pytest.raises(ClosedError):
        tx.commit()


# --- checks ----------------------------------------------------------------------------------------------------------


def wait_until(condition, broker, mq):
    for _ in range(200):
        if condition():
            return
        broker.advance("50ms")
        mq.lag("orders")  # somebody must move the bytes
    raise AssertionError("it never came")


@pytest.mark.parametrize(("decision", "left"), [("commit", [b"one"]), ("rollback", [])])
def test_an_undecided_one_is_asked_about_and_ended(broker, mq, decision, left):
    with broker.connect(app="shop", watcher=False) as gone:
        gone.transaction("orders", id="order-1", timeout="1s").send(b"one")
    seen = []

    def check(own_id):
        seen.append(own_id)
        return decision

    broker.advance("2s")
    mq.on_transaction_check("orders", check, every="100ms")
    wait_until(lambda: open_count(broker) == 0, broker, mq)
    assert seen == ["order-1"]
    assert stored(broker) == left


def test_who_does_not_know_is_asked_again_later(broker, mq):
    mq.transaction("orders", id="order-1", timeout="1s").send(b"one")
    answers = [None, ZeroDivisionError, "perhaps", "commit"]
    asked = []

    def check(own_id):
        asked.append(own_id)
        answer = answers[len(asked) - 1]
        if answer is ZeroDivisionError:
            raise answer
        return answer

    mq.on_transaction_check("orders", check, every="100ms")
    for count in range(1, 5):
        broker.advance("61s")
        wait_until(lambda count=count: len(asked) >= count, broker, mq)
    wait_until(lambda: open_count(broker) == 0, broker, mq)
    assert asked == ["order-1"] * 4
    assert stored(broker) == [b"one"]


def test_the_watcher_asks_while_nobody_calls():
    done = threading.Event()

    def check(own_id):
        done.set()
        return "commit"

    with TestBroker() as broker, broker.connect(app="shop") as mq:
        mq.transaction("orders", id="order-1", timeout="1s").send(b"one")
        broker.advance("2s")
        mq.on_transaction_check("orders", check)
        assert done.wait(20)


def test_what_a_transaction_manager_decides_is_asked_of_nobody_else(broker, mq):
    session = mq.session("orders", timeout="1s")
    session.tpc_begin(session.xid(1, "g", "b"))
    session.send(b"one")
    session.tpc_prepare()
    asked = []
    mq.on_transaction_check("orders", lambda own_id: asked.append(own_id), every="100ms")
    broker.advance("5s")
    for _ in range(20):
        mq.lag("orders")
    assert asked == []
    session.tpc_commit()
    assert stored(broker) == [b"one"]


# --- asyncio ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_id", ["", "order-1"])
def test_asyncio(broker, own_id):
    async def main():
        async with broker.aio_connect(app="shop") as mq:
            async with mq.transaction("orders", id=own_id) as tx:
                await tx.send(b"one", key="a")
                await tx.send_many([b"two", b"three"])
                assert stored(broker) == []
            assert tx.state == "committed"
            with contextlib.suppress(ZeroDivisionError):
                async with mq.transaction("orders", id=own_id) as tx:
                    await tx.send(b"four")
                    raise ZeroDivisionError
            assert tx.state == "rolled back"
            undecided = mq.transaction("orders", id="other", timeout="1s")
            await undecided.send(b"five")
            seen = asyncio.Event()

            async def check(own_id):
                seen.set()
                return "commit"

            broker.advance("2s")
            mq.on_transaction_check("orders", check, every="50ms")
            await asyncio.wait_for(seen.wait(), 20)
            for _ in range(200):
                if open_count(broker) == 0:
                    return
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert stored(broker) == [b"five", b"one", b"three", b"two"]


def test_a_plain_check_does_not_hold_up_the_loop(broker):
    threads, loop_went_on = [], threading.Event()

    def check(own_id):
        threads.append(threading.current_thread())
        assert loop_went_on.wait(10)  # set on the loop
        return "commit"

    async def main():
        async with broker.aio_connect(app="shop") as mq:
            undecided = mq.transaction("orders", id="plain", timeout="1s")
            await undecided.send(b"one")
            broker.advance("2s")
            mq.on_transaction_check("orders", check, every="50ms")
            async with asyncio.timeout(20):
                while not threads:
                    await asyncio.sleep(0.01)
                loop_went_on.set()
                while open_count(broker):
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    assert threads[0] is not threading.main_thread()
    assert stored(broker) == [b"one"]


# --- two phases -------------------------------------------------------------------------------------------------------


def test_an_xid_and_its_text():
    for xid in (Xid(0, "g", ""), Xid(7, "名", "a:b"), Xid(0x7FFFFFFF, "x" * 64, "y" * 64)):
        assert read_xid(make_xid(*xid).own_id) == xid
    for bad in ((-1, "g", "b"), (1, "", "b"), (1, "x" * 65, "b"), (1, "g", "x" * 65), (1 << 31, "g", "")):
        with pytest.raises(BadParameterError):
            make_xid(*bad)
    for other in ("order-1", "xa:", "xa:1:2", "xa:x:Zw:"):
        assert read_xid(other) is None


def test_prepared_and_committed(broker, mq):
    session = mq.session("orders")
    xid = session.xid(1, "transfer-1", "mq")
    session.tpc_begin(xid)
    session.send(b"one")
    session.send(b"two", partition=2)
    assert session.tpc_recover() == []
    session.tpc_prepare()
    assert session.is_prepared
    assert session.tpc_recover() == [xid]
    assert stored(broker) == []
    session.tpc_commit()
    assert stored(broker) == [b"one", b"two"]
    assert session.tpc_recover() == []


def test_prepared_and_rolled_back(broker, mq):
    session = mq.session("orders")
    for is_prepared in (False, True):
        session.tpc_begin(session.xid(1, "transfer-1", "mq"))
        session.send(b"one")
        if is_prepared:
            session.tpc_prepare()
        session.tpc_rollback()
    assert stored(broker) == []
    assert session.tpc_recover() == []


@pytest.mark.parametrize(("decision", "left"), [("commit", [b"one"]), ("rollback", [])])
def test_what_was_prepared_survives_the_client_and_the_broker(broker, decision, left):
    with broker.connect(app="shop") as mq:
        session = mq.session("orders")
        xid = session.xid(1, "transfer-1", "mq")
        session.tpc_begin(xid)
        session.send(b"one")
        session.tpc_prepare()
        broker.cut_power()
        broker.restart()
    with broker.connect(app="shop") as mq:
        session = mq.session("orders")
        assert session.tpc_recover() == [xid]
        getattr(session, f"tpc_{decision}")(xid)
        assert session.tpc_recover() == []
        with pytest.raises(TransactionNotFoundError):
            session.tpc_commit(xid)
    assert stored(broker) == left


def test_one_phase(broker, mq):
    session = mq.session("orders")
    session.send(b"one")
    session.rollback()
    session.send_many([b"two", b"three"])
    session.commit()
    session.commit()
    session.tpc_begin(session.xid(1, "g", "b"))
    session.send(b"four")
    session.tpc_commit()
    assert stored(broker) == [b"four", b"three", b"two"]


def test_calls_out_of_order_are_refused(mq):
    session = mq.session("orders")
    for call in (session.tpc_prepare, session.tpc_commit, session.tpc_rollback):
        with pytest.raises(TransactionError, match="tpc_begin"):
            call()
    session.tpc_begin(session.xid(1, "g", "b"))
    for call in (session.commit, session.rollback):
        with pytest.raises(TransactionError, match="tpc_commit"):
            call()
    with pytest.raises(TransactionError, match="under way"):
        session.tpc_begin(session.xid(1, "g", "c"))
    with pytest.raises(TransactionError, match="under way"):
        session.tpc_commit(session.xid(1, "g", "c"))
    session.tpc_prepare()
    with pytest.raises(TransactionNotFoundError):
        session.send(b"late")
    session.tpc_commit()


def test_a_prepared_xid_cannot_be_prepared_again(mq):
    first, second = mq.session("orders"), mq.session("orders")
    for session in (first, second):
        session.tpc_begin(session.xid(1, "g", "b"))
        session.send(b"one")
    first.tpc_prepare()
    with pytest.raises(TransactionExistsError):
        second.tpc_prepare()
    second.tpc_rollback()
    first.tpc_commit()


def test_many_that_are_prepared_are_all_found(broker, mq):
    session = mq.session("orders")
    xids = [session.xid(1, f"t-{nth}", "mq") for nth in range(1100)]
    for xid in xids:
        session = mq.session("orders")
        session.tpc_begin(xid)
        session.send(b"one")
        session.tpc_prepare()
    with mq.transaction("orders", id="other") as tx:
        tx.send(b"x")
        assert sorted(mq.session("orders").tpc_recover()) == sorted(xids)


class OtherResource:
    """Something else that takes part, and may refuse."""

    def __init__(self, manager, *, refuses=False):
        self.transaction_manager = manager
        self.refuses = refuses
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*_):
            self.calls.append(name)
            if name == "tpc_vote" and self.refuses:
                raise ValueError("no")

        return call

    def sortKey(self):
        return "zzz"  # after ours: ours is prepared by then


@pytest.mark.parametrize("refuses", [False, True])
def test_the_transaction_package(broker, mq, refuses):
    transaction = pytest.importorskip("transaction", reason="pip install transaction")
    from lakemq import xa

    manager = transaction.TransactionManager()
    session = mq.session("orders")
    manager.begin()
    xa.join(session, manager)
    other = OtherResource(manager, refuses=refuses)
    manager.get().join(other)
    session.send(b"one")
    if refuses:
        with pytest.raises(ValueError, match="no"):
            manager.commit()
    else:
        manager.commit()
    assert stored(broker) == ([] if refuses else [b"one"])
    assert session.tpc_recover() == []
    manager.begin()
    xa.join(session, manager)
    session.send(b"two")
    manager.abort()
    assert stored(broker) == ([] if refuses else [b"one"])


def test_without_a_manager_the_packages_own_is_taken(broker, mq):
    transaction = pytest.importorskip("transaction", reason="pip install transaction")
    from lakemq import xa

    session = mq.session("orders")
    xa.join(session)
    session.send(b"one")
    transaction.commit()
    assert stored(broker) == [b"one"]


def block_of(*bodies):
    return MessageBlock(len(bodies), tuple(pack(PlainMessage(body=body)) for body in bodies))


@pytest.mark.parametrize("blocks", [(), (block_of(b"one", b"two"),), (block_of(b"one"), block_of(b"two"))])
def test_a_request_is_laid_out_as_the_codec_does_it(blocks):
    command = Transact("订单", "shop", "tx-1", "own é", 7, 3, 1, blocks)
    expected = b"".join(encode_request(command, form=Form(), request_id=9, send_time_ms=5))
    assert b"".join(transact_frame(command, 9, 5)) == expected
    with pytest.raises(BadParameterError):
        transact_frame(Transact(transaction_id="x" * 40_000), 9, 5)

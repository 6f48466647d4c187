"""The outbox: what was promised is sent, after any crash, and stored once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.fake_broker import FakeCluster
from client.fix_client import fake_async_client, fake_client, run_virtual
from lakemq.client.errors import OutboxFullError, OutboxLockedError
from lakemq.client.outbox_file import OutboxFile
from lakemq.client.outbox_log import MAGIC, OutboxLog
from lakemq.client.outgoing import Message
from lakemq.errors import AuthenticationError, BadParameterError, BrokerBusyError, TopicNotFoundError
from lakemq.wire.produce import ProduceMessage

LIMIT = 1 << 20


@pytest.fixture
def cluster():
    return FakeCluster()


def add(log, n, **more):
    values = {"topic": "orders", "partition": None, "key": None, "acks": "flush", "is_ordered": False, **more}
    return log.add(**values, count=1, message=b"message %d" % n)


def sample():
    """A log with its bytes, and how many bytes there were after each record."""
    log, data = OutboxLog(LIMIT), MAGIC
    states = [(len(MAGIC), {})]
    for n in range(4):
        _, record = add(log, n, key="k" if n % 2 else None, partition=n if n % 2 else None, acks="write")
        data += record
        states.append((len(data), dict(log.live)))
        if n == 2:
            data += log.done(1)
            states.append((len(data), dict(log.live)))
    return data, states


def test_a_log_cut_at_any_byte_gives_what_was_whole():
    data, states = sample()
    for cut in range(len(data) + 1):
        log = OutboxLog.recover(data[:cut], LIMIT)
        end, live = max((state for state in states if state[0] <= max(cut, len(MAGIC))), key=lambda state: state[0])
        assert log.live == live
        assert log.file_bytes == end


def test_a_log_with_any_byte_changed_gives_a_prefix():
    data, states = sample()
    for at in range(len(MAGIC), len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x40
        log = OutboxLog.recover(bytes(broken), LIMIT)
        assert log.live in [live for end, live in states if end <= at]


def test_a_file_of_somebody_else_is_refused():
    with pytest.raises(BadParameterError):
        OutboxLog.recover(b"something else", LIMIT)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10)), max_size=40))
def test_a_rewritten_log_is_the_same_log(steps):
    log, data, n = OutboxLog(LIMIT), MAGIC, 0
    for is_add, which in steps:
        if is_add or not log.live:
            _, record = add(log, n)
            data += record
            n += 1
        else:
            data += log.done(list(log.live)[which % len(log.live)])
    assert log.file_bytes == len(data)
    kept = dict(log.live)
    assert OutboxLog.recover(data, LIMIT).live == kept
    again = OutboxLog.recover(log.rewritten(), LIMIT)
    assert again.live == kept
    assert again.file_bytes == log.file_bytes
    assert again.live_bytes == log.live_bytes


def test_a_full_log_takes_no_more_until_something_is_done():
    log = OutboxLog(2 * len(add(OutboxLog(LIMIT), 1)[1]))
    add(log, 1)
    add(log, 2)
    with pytest.raises(OutboxFullError):
        add(log, 3)
    log.done(1)
    add(log, 3)


def test_two_processes_do_not_share_a_directory(tmp_path):
    first = OutboxFile(tmp_path, LIMIT)
    with pytest.raises(OutboxLockedError):
        OutboxFile(tmp_path, LIMIT)
    first.close()
    OutboxFile(tmp_path, LIMIT).close()


def test_a_torn_tail_is_cut_off_the_file(tmp_path):
    file = OutboxFile(tmp_path, LIMIT)
    _, record = add(file.log, 1)
    file.append(record, True)
    file.append(add(file.log, 2)[1][:-3], True)
    file.close()
    again = OutboxFile(tmp_path, LIMIT)
    assert list(again.log.live) == [1]
    assert again.cut_bytes > 0
    again.append(add(again.log, 3)[1], True)
    again.close()
    assert len(OutboxFile(tmp_path, LIMIT).log.live) == 2


def test_a_message_that_arrived_is_not_sent_again(cluster, tmp_path):
    with fake_client(cluster, outbox=tmp_path) as mq:
        receipt = mq.send("orders", b"a")
        assert receipt.offset == 0
        assert receipt.uniq_id is not None
        assert not receipt.queued
    with fake_client(cluster, outbox=tmp_path) as mq:
        mq.send("orders", b"b")
    assert sorted(cluster.bodies()) == [b"a", b"b"]


def test_without_a_broker_messages_are_queued_and_sent_at_the_next_connect(cluster, tmp_path):
    cluster.stop(1)
    with fake_client(cluster, outbox=tmp_path) as mq:
        for n in range(5):
            receipt = mq.send("orders", b"%d" % n, key="k", timeout="100ms")
            assert receipt.queued
            assert receipt.offset is None
            assert receipt.message_id is not None
    assert cluster.bodies() == []
    cluster.down.clear()
    with fake_client(cluster, outbox=tmp_path) as mq:
        last = mq.send("orders", b"last", key="k")
        assert not last.queued
    assert cluster.stored()[last.partition] == [b"0", b"1", b"2", b"3", b"4", b"last"]


def test_what_is_queued_goes_out_as_soon_as_the_broker_is_back(cluster, tmp_path):
    with fake_client(cluster, outbox=tmp_path) as mq:
        mq.send("orders", b"first", partition=0)
        cluster.stop(1)
        assert mq.send("orders", b"second", partition=0, timeout="200ms").queued
        cluster.down.clear()
        mq.reach("30s")
        assert mq.send("orders", b"third", partition=0, timeout="30s").offset == 2
    assert cluster.stored()[0] == [b"first", b"second", b"third"]


def test_an_unknown_outcome_leaves_one_copy(cluster, tmp_path):
    with fake_client(cluster, outbox=tmp_path) as mq:
        mq.send("orders", b"first")
        cluster.drop(ProduceMessage, is_stored=True)
        mq.send("orders", b"x")
    assert cluster.bodies().count(b"x") == 1


def test_a_crash_between_the_brokers_answer_and_our_note_leaves_one_copy(cluster, tmp_path):
    mq = fake_client(cluster, outbox=tmp_path / "a")
    mq.send("orders", b"x")
    log = tmp_path / "a" / "outbox.log"
    with_done = log.read_bytes()
    recovered = OutboxLog.recover(with_done, LIMIT)
    assert recovered.live == {}
    for cut in range(len(with_done)):  # a power cut: any prefix of what was not synced
        again = OutboxLog.recover(with_done[:cut], LIMIT)
        if not again.live:
            continue
        directory = tmp_path / f"cut-{cut}"
        directory.mkdir()
        (directory / "outbox.log").write_bytes(with_done[:cut])
        with fake_client(cluster, outbox=directory) as other:
            other.send("orders", b"mark")
    mq.close()
    assert cluster.bodies().count(b"x") == 1


def test_batches_are_kept_as_a_whole(cluster, tmp_path):
    with fake_client(cluster, outbox=tmp_path, delivery_timeout_ms=200, timeout="100ms") as mq:
        mq.send("orders", b"warm", partition=1)
        cluster.stop(1)
        futures = [mq.send_soon("orders", b"%d" % n, partition=0) for n in range(50)]
        mq.flush()
        assert all(future.result().queued for future in futures)
    cluster.down.clear()
    with fake_client(cluster, outbox=tmp_path) as mq:
        mq.send("orders", b"last", partition=0)
    assert cluster.stored()[0] == [*[b"%d" % n for n in range(50)], b"last"]


def test_batches_can_be_kept_before_any_broker_was_seen(cluster, tmp_path):
    cluster.stop(1)
    with fake_client(cluster, outbox=tmp_path, delivery_timeout_ms=200) as mq:
        futures = [mq.send_soon("orders", b"%d" % n, key="abc"[n % 3]) for n in range(30)]
        mq.flush()
        assert all(future.result().queued for future in futures)
    cluster.down.clear()
    with fake_client(cluster, outbox=tmp_path) as mq:
        places = {key: mq.send("orders", b"last", key=key).partition for key in "abc"}
    stored = cluster.stored()
    for n, key in enumerate("abc"):
        mine = [body for body in stored[places[key]] if body != b"last" and int(body) % 3 == n]
        assert mine == [b"%d" % k for k in range(n, 30, 3)]


def test_what_can_never_be_delivered_is_raised_and_not_kept(cluster, tmp_path):
    with fake_client(cluster, outbox=tmp_path) as mq:
        with pytest.raises(TopicNotFoundError):
            mq.send("nowhere", b"x")
        mq.send("orders", b"y")
    assert OutboxLog.recover((tmp_path / "outbox.log").read_bytes(), LIMIT).live == {}


def test_a_backlog_that_the_broker_refuses_does_not_hold_up_the_others(cluster, tmp_path, caplog):
    cluster.stop(1)
    with fake_client(cluster, outbox=tmp_path) as mq:
        mq.send("nowhere", b"x", timeout="50ms")
        mq.send("orders", b"y", timeout="50ms", partition=0)
    cluster.down.clear()
    with fake_client(cluster, outbox=tmp_path) as mq:
        mq.send("orders", b"z", partition=0)
    assert cluster.stored()[0] == [b"y", b"z"]
    assert "stays in the outbox" in caplog.text
    assert len(OutboxLog.recover((tmp_path / "outbox.log").read_bytes(), LIMIT).live) == 1


def test_a_wrong_token_keeps_everything(cluster, tmp_path):
    cluster.stop(1)
    with fake_client(cluster, outbox=tmp_path) as mq:
        mq.send("orders", b"x", timeout="50ms")
    cluster.down.clear()
    cluster.token = "secret"
    with pytest.raises(AuthenticationError):
        fake_client(cluster, outbox=tmp_path)
    with fake_client(cluster, outbox=tmp_path, token="secret") as mq:
        mq.send("orders", b"y")
    assert sorted(cluster.bodies()) == [b"x", b"y"]


def test_a_full_outbox_refuses(cluster, tmp_path):
    cluster.stop(1)
    with fake_client(cluster, outbox=tmp_path, outbox_bytes_max=2000) as mq:
        mq.send("orders", bytes(1500), timeout="50ms")
        with pytest.raises(OutboxFullError):
            mq.send("orders", bytes(1500), timeout="50ms")


def test_what_does_not_fit_as_a_whole_is_not_kept_in_part(cluster, tmp_path):
    with fake_client(cluster, outbox=tmp_path, outbox_bytes_max=2000) as mq:
        report = mq.send_many("orders", [Message(bytes(600), partition=0, priority=1) for _ in range(5)])
        assert [type(error) for _, error in report.failed] == [OutboxFullError] * 5
        assert mq._outbox.waiting == 0
        mq.send("orders", bytes(600), partition=0)
    assert len(cluster.stored()[0]) == 1
    assert OutboxLog.recover((tmp_path / "outbox.log").read_bytes(), LIMIT).live == {}


def test_a_file_that_is_mostly_done_is_rewritten(cluster, tmp_path):
    with fake_client(cluster, outbox=tmp_path) as mq:
        for _ in range(30):
            mq.send("orders", bytes(100_000), partition=0)
    assert (tmp_path / "outbox.log").stat().st_size < 1_500_000
    assert len(cluster.stored()[0]) == 30
    OutboxFile(tmp_path, LIMIT).close()


def test_a_busy_broker_is_waited_for(cluster, tmp_path):
    with fake_client(cluster, outbox=tmp_path) as mq:
        mq.send("orders", b"first", partition=0)
        cluster.fail(ProduceMessage, BrokerBusyError(), times=3)
        assert mq.send("orders", b"x", partition=0).queued
        assert not mq.send("orders", b"y", partition=0).queued
    assert cluster.stored()[0] == [b"first", b"x", b"y"]


def test_the_asyncio_client_has_the_same_outbox(cluster, tmp_path):
    async def offline():
        async with fake_async_client(cluster, outbox=tmp_path) as mq:
            return await mq.send("orders", b"x", timeout="100ms")

    async def online():
        async with fake_async_client(cluster, outbox=tmp_path) as mq:
            return await mq.send("orders", b"y")

    cluster.stop(1)
    assert run_virtual(cluster, offline()).queued
    cluster.down.clear()
    assert not run_virtual(cluster, online()).queued
    assert sorted(cluster.bodies()) == [b"x", b"y"]

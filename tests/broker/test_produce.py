"""Sending: when a producer is answered, what is stored and seen by then, and what is left after each kind of end."""

from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.fix_broker import DOCUMENTED, FULL, JOYQUEUE, SMALL, BrokerLife, block_of, make_broker, message_of
from lakemq.broker import runs as broker_runs
from lakemq.envelope import pack, unpack_all
from lakemq.message import Qos
from lakemq.record import read_fields, write_fields
from lakemq.storage.config import StorageConfig
from lakemq.storage.sync_policy import SyncPolicy
from lakemq.wire import produce_run
from lakemq.wire.consume import (
    FetchIndex,
    FetchPartitionMessage,
    PartitionFetch,
    TopicPartitionFetch,
    TopicPartitions,
)
from lakemq.wire.messages import MessageBlock
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.produce import ProduceMessage, ProduceMessageCommit, ProduceMessagePrepare, TopicProduce
from lakemq.wire.session import AddConsumer, AddProducer, Heartbeat

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)

RECEIVED, WRITTEN, SYNCED, NEVER = "when received", "when written", "when synced", "never"
MOMENT = {Qos.FLUSH: SYNCED, Qos.WRITE: WRITTEN, Qos.RECEIVE: RECEIVED, Qos.NO: NEVER}
DOCUMENTED_LEVELS = (Qos.FLUSH, Qos.RECEIVE, Qos.NO, Qos.WRITE)
JOYQUEUE_LEVELS = (Qos.NO, Qos.RECEIVE, Qos.FLUSH, Qos.WRITE, Qos.FLUSH)


def moment_of_answer(life, peer, command, qos_bits):
    """When the answer comes; a sync is asked for by nobody but the level."""
    request_id = peer.send(command, qos_bits)
    if peer.received(request_id):
        return RECEIVED
    life.engine.end_turn()
    if peer.received(request_id):
        return WRITTEN
    life.settle()
    if peer.received(request_id):
        return SYNCED
    life.sync()
    assert peer.received(request_id) is None
    return NEVER


# --- levels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", range(4), ids=lambda level: f"body {DOCUMENTED_LEVELS[level].value}")
@pytest.mark.parametrize("bits", range(4), ids=lambda bits: f"header {DOCUMENTED_LEVELS[bits].value}")
def test_the_stronger_of_header_and_body_decides_when_a_documented_producer_is_answered(bits, level):
    life = make_broker()
    peer = life.peer()
    stronger = max(DOCUMENTED_LEVELS[bits], DOCUMENTED_LEVELS[level], key=lambda qos: qos.strength)
    assert moment_of_answer(life, peer, peer.produce_command(b"x", qos=level), bits) == MOMENT[stronger]
    life.sync()
    assert life.stored() == [b"x"], "whatever the level, it is stored"


@pytest.mark.parametrize("level", [*range(5), -1, 5, 99])
@pytest.mark.parametrize("bits", range(4))
def test_the_header_tells_whether_and_the_body_when_a_joyqueue_producer_is_answered(bits, level):
    life = make_broker()
    peer = life.peer(dialect=JOYQUEUE)
    qos = JOYQUEUE_LEVELS[level] if 0 <= level <= 4 else Qos.WRITE
    wanted = RECEIVED if qos is Qos.NO else MOMENT[qos]
    expected = wanted if bits else NEVER
    assert moment_of_answer(life, peer, peer.produce_command(b"x", qos=level), bits) == expected
    life.sync()
    assert life.stored() == [b"x"]


@both
def test_a_sync_answers_for_what_was_written_before_it_began_and_no_more(dialect):
    life = make_broker()
    first, second = life.peer(dialect=dialect), life.peer(dialect=dialect)
    life.sync()
    before = first.send(first.produce_command(b"before"))
    life.engine.end_turn()
    ticket = life.engine.tickets.popleft()
    ticket.run()
    after = second.send(second.produce_command(b"after"))
    life.engine.end_turn()
    life.engine.bring_back(ticket, None)
    assert first.received(before).body.topics[0].code == 0
    assert second.received(after) is None
    assert life.stored() == [b"before"]
    life.lose_power(mode="nothing")
    assert life.stored() == [b"before"]


@both
def test_the_bits_have_no_effect_on_other_commands(dialect):
    peer = make_broker().peer(dialect=dialect)
    for bits in range(4):
        assert peer.ask(Heartbeat(), bits).status == 0
        assert peer.ask(FetchCluster(("orders",), "shop"), bits).status == 0


@both
@pytest.mark.parametrize("qos", list(Qos), ids=lambda qos: qos.value)
def test_nothing_is_seen_before_it_is_synced_whatever_the_level(dialect, qos):
    life = make_broker()
    peer, reader = life.peer(dialect=dialect), life.peer().consumes()
    life.sync()
    peer.send(peer.produce_command(b"x", qos=qos), 2)
    for step in (lambda: None, life.engine.end_turn):
        step()
        reads, lends = reader.send(reader_of_partition(reader)), reader.send(reader.fetch_command())
        stands = reader.send(FetchIndex((TopicPartitions("orders", (0,)),), "shop"))
        assert reader.received(reads).body.topics[0].partitions[0].messages.count == 0
        assert reader.fetched(reader.received(lends)) == []
        assert reader.received(stands).body.topics[0].partitions[0].index == 0
    life.sync()
    assert reader.read(index=0) == [b"x"]
    assert reader.fetch() == [b"x"]


def reader_of_partition(peer):
    return FetchPartitionMessage((TopicPartitionFetch("orders", (PartitionFetch(0, 10, 0),)),), peer.app)


@both
@pytest.mark.parametrize("qos", list(Qos), ids=lambda qos: qos.value)
def test_what_a_level_promises_survives_a_kill_and_a_power_loss(dialect, qos):
    for end in ("kill", "power"):
        life = make_broker()
        peer = life.peer(dialect=dialect)
        life.sync()
        assert moment_of_answer(life, peer, peer.produce_command(b"x", qos=qos), 1) != NEVER
        if end == "kill":
            life.kill()
            assert life.stored() == ([b"x"] if qos in (Qos.FLUSH, Qos.WRITE) else [])
        else:
            life.lose_power(mode="nothing")
            assert life.stored() == ([b"x"] if qos is Qos.FLUSH else [])


@pytest.mark.parametrize("seed", range(40))
def test_after_any_end_a_tail_may_be_gone_but_never_a_middle(seed):
    rng = Random(seed)
    life = make_broker(partitions=1)
    sent, promised = 0, 0
    for _ in range(3):
        peer = life.peer(dialect=rng.choice([DOCUMENTED, JOYQUEUE]))
        asked = {}
        for _ in range(rng.randint(1, 12)):
            qos, bits = rng.choice(list(Qos)), rng.choice([0, 1, 2])
            request_id = peer.send(peer.produce_command(b"%d" % sent, qos=qos), bits)
            levels = [qos] if peer.dialect is JOYQUEUE else [qos, DOCUMENTED_LEVELS[bits]]
            asked[request_id] = (sent, max(levels, key=lambda one: one.strength))
            sent += 1
            rng.choice([lambda: None, life.engine.end_turn, life.settle])()
        is_power = rng.random() < 0.5
        kept = {Qos.FLUSH} if is_power else {Qos.FLUSH, Qos.WRITE}
        for request_id, (number, qos) in asked.items():
            if peer.received(request_id) and qos in kept:
                promised = max(promised, number + 1)
        if is_power:
            life.lose_power(seed, mode=None)
        else:
            life.kill()
        bodies = life.stored()
        assert bodies == [b"%d" % number for number in range(len(bodies))]
        assert len(bodies) >= promised
        sent = promised = len(bodies)  # what is read now stays


# --- what an answer says ---------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("qos", [Qos.FLUSH, Qos.WRITE], ids=lambda qos: qos.value)
def test_a_stored_message_is_answered_with_its_place_and_send_time(dialect, qos):
    peer = make_broker().peer(dialect=dialect)
    code, results = peer.produce(b"a", b"b", partition=1, qos=qos)
    assert code == 0
    assert [(one.partition, one.index, one.start_time_ms) for one in results] == [(1, 0, 5), (1, 1, 5)]
    _, results = peer.produce(b"c", partition=1, qos=qos)
    assert results[0].index == 2


@both
def test_a_received_message_has_no_index_yet(dialect):
    peer = make_broker().peer(dialect=dialect)
    for _ in range(3):  # the second and third come as a run
        code, results = peer.produce(b"a", b"b", qos=Qos.RECEIVE)
        assert code == 0
        assert [(one.partition, one.index, one.start_time_ms) for one in results] == [(0, -1, 5), (0, -1, 5)]


@both
def test_what_waits_or_is_put_aside_has_no_index_and_keeps_partition_and_send_time(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    asked = {"attributes": {"DELAY_LEVEL": "3"}}
    peer.ask(AddProducer(("orders",), "shop"))
    in_transaction = {"tx_id": peer.ask(ProduceMessagePrepare("orders", "shop", 1, "mine")).body.tx_id}
    for details in (asked, in_transaction):
        code, results = peer.produce(b"a", b"b", partition=1, **details)
        assert code == 0
        assert [(one.partition, one.index, one.start_time_ms) for one in results] == [(1, -1, 5), (1, -1, 5)]
    life.ask("set_app", name="shop", produce_per_second=1)
    life.ask("subscribe", topic="orders", app="shop", producer={"parks_over_rate": True})
    peer.produce(b"within the rate")
    code, results = peer.produce(b"over it", partition=1)
    assert (code, [(one.partition, one.index, one.start_time_ms) for one in results]) == (0, [(1, -1, 5)])


@both
def test_a_message_that_failed_is_nowhere(dialect):
    peer = make_broker().peer(dialect=dialect)
    code, results = peer.produce(b"a", b"b", partition=9)
    assert code == 188
    assert [(one.partition, one.index, one.start_time_ms) for one in results] == [(-1, -1, -1)] * 2


@both
def test_no_answer_is_sent_to_who_wants_none_not_even_for_what_failed(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    bits = 2 if dialect is DOCUMENTED else 0
    for command in (peer.produce_command(b"x", qos=Qos.NO), peer.produce_command(b"x", qos=Qos.NO, partition=9)):
        for _ in range(3):
            assert moment_of_answer(life, peer, command, bits) == NEVER
    assert life.stored() == [b"x"] * 3


@both
def test_the_server_sets_place_term_and_store_time_and_keeps_all_else_to_the_byte(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    sent = message_of(
        b"body",
        business_id="key",
        attributes={"TAGS": "a", "KEYS": "b"},
        priority=3,
        app="shop",
        extension=b"\0more",
        flag=7,
    )
    assert peer.produce(block=MessageBlock(1, (bytearray(pack(sent)),)))[0] == 0
    (kept,) = unpack_all(bytes(stored_bytes(life)))
    names = ("business_id", "attributes", "priority", "app", "extension", "flag", "body", "send_time_ms", "is_ordered")
    assert {name: getattr(kept, name) for name in names} == {name: getattr(sent, name) for name in names}
    assert (kept.partition, kept.index, kept.term) == (0, 0, life.broker.ledger.term)
    assert kept.store_time_ms == min(life.clock.wall_ms() - 5, 0x7FFFFFFF)


def stored_bytes(life, partition=0):
    number, group = life.topic_number("orders"), life.engine.group
    first, end = group.first_index(number, partition), group.visible_index(number, partition)
    return b"".join(bytes(one.messages) for one in group.read(number, partition, first, end - first, 1 << 30))


@pytest.mark.parametrize("open_crc", [0, -1])
def test_a_crc_that_was_left_open_is_filled_in(open_crc):
    life = make_broker()
    fields, _ = read_fields(pack(message_of(b"body")))
    right, fields.body_crc = fields.body_crc, open_crc
    for _ in range(2):
        assert life.peer().produce(block=MessageBlock(1, (bytearray(write_fields(fields)),)))[0] == 0
    kept, _ = read_fields(stored_bytes(life))
    assert kept.body_crc == right


@both
def test_attributes_with_a_broken_escape_are_stored(dialect):
    """Who reads them is told; the server refuses nothing that it need not understand."""
    life = make_broker()
    peer = life.peer(dialect=dialect)
    fields, _ = read_fields(pack(message_of(b"body")))
    fields.attributes = b"a=\\u12"
    assert peer.produce(block=MessageBlock(1, (bytearray(write_fields(fields)),)))[0] == 0
    kept, _ = read_fields(stored_bytes(life))
    assert kept.attributes == b"a=\\u12"
    life.restart()


# --- all or nothing --------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("place", range(3))
def test_a_topic_is_stored_whole_or_not_at_all(dialect, place):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    good, bad = pack(message_of(b"good")), bytearray(pack(message_of(b"bad")))
    bad[18:20] = b"\x02\x00"  # a version nobody knows
    parts = [good, good, good]
    parts[place] = bytes(bad)
    block = MessageBlock(3, (bytearray(b"".join(parts)),))
    if dialect is JOYQUEUE:  # its own layout has the code elsewhere
        block = block_of(b"good", b"good", b"good").in_dialect(JOYQUEUE)
        data = bytearray(block.joined())
        size = len(data) // 3
        data[place * size + 20 : place * size + 22] = b"\xf0\x00"
        block = MessageBlock(3, (data,), JOYQUEUE)
    code, results = peer.produce(block=block)
    assert (code, len(results)) == (6, 3)
    assert life.appended() == 0
    life.kill()
    assert life.appended() == 0


@both
def test_topics_of_one_request_fare_each_on_its_own(dialect):
    life = make_broker(topics=("orders", "bills", "closed"))
    life.ask("set_topic", name="closed", is_writable=False)
    peer = life.peer(dialect=dialect)
    entries = (
        peer.produce_entry(b"1", topic="orders"),
        peer.produce_entry(b"2", topic="closed"),
        peer.produce_entry(b"3", topic="nowhere"),
        peer.produce_entry(b"4", b"5", topic="bills", partition=1),
        peer.produce_entry(topic="orders"),
    )
    answer = peer.ask(ProduceMessage(entries, "shop"))
    found = [(one.topic, one.code, len(one.results)) for one in answer.body.topics]
    assert found == [("orders", 0, 1), ("closed", 144, 1), ("nowhere", 189, 1), ("bills", 0, 2), ("orders", 6, 0)]
    assert (life.stored("orders"), life.stored("bills", 1)) == ([b"1"], [b"4", b"5"])


@both
@pytest.mark.parametrize("levels", [(Qos.RECEIVE, Qos.FLUSH), (Qos.WRITE, Qos.FLUSH), (Qos.RECEIVE, Qos.WRITE)])
def test_the_strongest_level_of_the_topics_decides_when_all_are_answered(dialect, levels):
    life = make_broker(topics=("orders", "bills"))
    peer = life.peer(dialect=dialect)
    entries = [
        peer.produce_entry(b"x", topic=topic, qos=qos) for topic, qos in zip(("orders", "bills"), levels, strict=True)
    ]
    assert moment_of_answer(life, peer, ProduceMessage(tuple(entries), "shop"), 1) == MOMENT[levels[1]]


@both
def test_what_failed_in_every_topic_is_answered_at_once(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    assert moment_of_answer(life, peer, peer.produce_command(b"x", partition=9), 1) == RECEIVED


@both
def test_a_failed_write_takes_back_the_whole_turn_and_the_next_goes_on(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    peer.produce(b"before")
    life.disk.fail("write", FULL, path_contains="journal/", wrote=100)
    asked = [peer.send(peer.produce_command(b"lost %d" % number, qos=Qos.WRITE)) for number in range(3)]
    life.settle()
    assert [peer.received(one).body.topics[0].code for one in asked] == [109] * 3
    code, (result,) = peer.produce(b"after")
    assert (code, result.index) == (0, 1)
    for end in (life.kill, life.lose_power):
        end()
        assert life.stored() == [b"before", b"after"]


def test_numbers_of_topics_that_were_taken_back_lead_nobody_astray():
    """A topic made by its first message is gone if that is not written. The next one gets its number, and what the
    connection remembers of the first must not lead there."""
    life = BrokerLife(creates_missing=True)
    first, second = life.peer(), life.peer()
    life.sync()
    life.disk.fail("write", FULL, path_contains="journal/")
    assert first.produce(b"not written", topic="a")[0] == 109
    assert "a" not in life.broker.ledger.metadata.topics
    assert second.produce(b"for b", topic="b")[0] == 0
    asked = first.send_all(*[first.produce_command(b"for a", topic="a") for _ in range(3)])
    life.settle()
    assert [first.received(one).body.topics[0].code for one in asked] == [0, 0, 0]
    assert life.stored("b") == [b"for b"]
    assert life.stored("a") == [b"for a"] * 3


def test_a_consumer_of_a_topic_that_was_taken_back_gets_nothing_of_the_next():
    life = BrokerLife(creates_missing=True)
    first, second = life.peer(), life.peer("other")
    life.sync()
    life.disk.fail("write", FULL, path_contains="journal/")
    added, waiting = first.send_all(AddConsumer(("a",), "shop"), first.fetch_command("a", wait_ms=10_000))
    life.settle()
    assert first.received(added).status == 109
    assert first.fetched(first.received(waiting)) == 136
    second.consumes("b")
    second.produce(b"for b", topic="b")
    assert second.fetch("b") == [b"for b"]
    first.consumes("a")
    first.produce(b"for a", topic="a")
    assert first.fetch("a") == [b"for a"]


# --- which partition -------------------------------------------------------------------------------------------------


@both
def test_without_a_partition_the_server_takes_turns_and_says_which(dialect):
    life = make_broker(partitions=4)
    peer = life.peer(dialect=dialect)
    used = [peer.produce(b"%d" % number, partition=-1)[1][0].partition for number in range(8)]
    assert sorted(used) == [0, 0, 1, 1, 2, 2, 3, 3]
    for number, partition in enumerate(used):
        assert b"%d" % number in life.stored(partition=partition)


@both
def test_messages_of_one_request_go_to_one_partition(dialect):
    peer = make_broker(partitions=4).peer(dialect=dialect)
    for _ in range(3):
        _, results = peer.produce(b"a", b"b", b"c", partition=-1)
        assert len({one.partition for one in results}) == 1
        assert [one.index - results[0].index for one in results] == [0, 1, 2]


@both
@pytest.mark.parametrize("kind", ["ordered topic", "ordered message"])
def test_what_is_ordered_goes_by_its_key(dialect, kind):
    life = make_broker(partitions=4)
    life.ask("create_topic", name="steps", partitions=4, type="ordered" if kind == "ordered topic" else "normal")
    life.ask("subscribe", topic="steps", app="shop", producer={})
    peer = life.peer(dialect=dialect)
    places = {}
    for turn in range(3):
        commands = [
            peer.produce_command(
                b"%d" % turn,
                topic="steps",
                partition=-1,
                business_id=f"key {key}",
                is_ordered=kind == "ordered message",
            )
            for key in range(20)
        ]
        asked = peer.send_all(*commands)
        life.settle()
        for key, request_id in enumerate(asked):
            (result,) = peer.received(request_id).body.topics[0].results
            assert places.setdefault(key, result.partition) == result.partition
    assert set(places.values()) == {0, 1, 2, 3}
    _, (result,) = peer.produce(b"x", topic="steps", partition=-1, is_ordered=True)
    assert result.partition == 0, "no key: the first"


@both
def test_a_batch_takes_as_many_indexes_as_it_holds_and_has_one_result(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    code, results = peer.produce(b"a", (b"b", b"c", b"d"), b"e")
    assert code == 0
    assert [one.index for one in results] == [0, 1, 4]
    assert peer.produce(b"f")[1][0].index == 5
    assert life.stored() == [b"a", b"b", b"c", b"d", b"e", b"f"]


# --- runs ------------------------------------------------------------------------------------------------------------

KINDS = st.sampled_from(
    [
        "plain",
        "plain",
        "plain",
        "two",
        "batch",
        "flush",
        "receive",
        "uniq",
        "bad",
        "other partition",
        "elsewhere",
        "beat",
    ]
)


def command_of(peer, kind, number):
    body = b"%d" % number
    details = {
        "plain": {"qos": Qos.WRITE},
        "flush": {"qos": Qos.FLUSH},
        "receive": {"qos": Qos.RECEIVE},
        "uniq": {"attributes": {"UNIQ_ID": str(number % 3)}},
        "other partition": {"partition": 1, "qos": Qos.WRITE},
        "elsewhere": {"partition": 7, "qos": Qos.WRITE},
    }.get(kind, {"qos": Qos.WRITE})
    if kind == "beat":
        return Heartbeat()
    if kind == "two":
        return peer.produce_command(body, body + b"'", **details)
    if kind == "batch":
        return peer.produce_command((body, body + b"'"), **details)
    if kind == "bad":
        bad = block_of(body)
        bad.parts[0][33:41] = (1).to_bytes(8, "big")  # a wrong CRC
        return peer.produce_command(block=bad, **details)
    return peer.produce_command(body, **details)


def outcome(kinds, dialect, cuts):
    """Answers by request and all that is stored, of requests that arrive in pieces of these sizes."""
    life = make_broker()
    peer = life.peer(dialect=dialect)
    before = peer.stray[-1]
    frames = [peer.frame(command_of(peer, kind, number)) for number, kind in enumerate(kinds)]
    data = b"".join(frames)
    at = 0
    for size in [*cuts, len(data)]:
        peer.pipe.feed(data[at : at + size])
        life.settle()
        at += size
    peer.received(0)
    answers = {number: peer.received(before + 1 + number) for number in range(len(kinds))}
    life.sync()
    return answers, [stored_bytes(life, partition) for partition in (0, 1)]


@pytest.mark.parametrize("with_twin", [True, False], ids=["compiled", "python"])
@settings(max_examples=60, deadline=None)
@given(kinds=st.lists(KINDS, min_size=1, max_size=14), cuts=st.lists(st.integers(1, 900), max_size=4))
def test_requests_that_arrive_together_fare_as_if_they_came_one_by_one(with_twin, kinds, cuts):
    with ExitStack() as stack:
        if not with_twin:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(broker_runs, "_hot", None)
            patch.setattr(produce_run, "_hot", None)
        life = make_broker()
        peer = life.peer()
        sizes = [len(peer.frame(command_of(peer, kind, number))) for number, kind in enumerate(kinds)]
        one_by_one = outcome(kinds, DOCUMENTED, sizes)
        assert outcome(kinds, DOCUMENTED, []) == one_by_one
        assert outcome(kinds, DOCUMENTED, cuts) == one_by_one


@both
def test_many_alike_are_each_answered_and_all_stored_in_order(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    asked = peer.send_all(*[peer.produce_command(b"%d" % number, qos=Qos.FLUSH) for number in range(300)])
    life.engine.end_turn()
    assert not any(map(peer.received, asked)), "a run waits for the sync like everybody"
    life.settle()
    answers = [peer.received(one).body.topics[0] for one in asked]
    assert [one.results[0].index for one in answers] == list(range(300))
    assert life.stored() == [b"%d" % number for number in range(300)]


def test_a_run_without_a_partition_is_answered_with_the_one_it_went_to():
    life = make_broker(partitions=3)
    peer = life.peer()
    for _ in range(4):
        asked = peer.send_all(*[peer.produce_command(b"%d" % number, partition=-1) for number in range(10)])
        life.settle()
        for number, request_id in enumerate(asked):
            (result,) = peer.received(request_id).body.topics[0].results
            stored = life.stored(partition=result.partition)
            assert stored[result.index] == b"%d" % number
    assert life.appended() == 40


@pytest.mark.parametrize("with_twin", [True, False], ids=["compiled", "python"])
def test_a_run_that_the_disk_refuses_is_refused_request_by_request(with_twin, monkeypatch):
    if not with_twin:
        monkeypatch.setattr(broker_runs, "_hot", None)
        monkeypatch.setattr(produce_run, "_hot", None)
    life = make_broker()
    peer = life.peer()
    for _ in range(2):
        peer.produce(b"first", qos=Qos.WRITE)
    life.disk.fail("write", FULL, path_contains="journal/", wrote=64)
    asked = peer.send_all(*[peer.produce_command(b"a", b"b", qos=Qos.WRITE) for _ in range(5)])
    life.settle()
    for one in asked:
        (entry,) = peer.received(one).body.topics
        assert (entry.topic, entry.code, len(entry.results)) == ("orders", 109, 2)
    life.sync()
    assert life.stored() == [b"first", b"first"]


def test_a_run_is_stopped_by_whatever_changes_meanwhile():
    life = make_broker()
    peer = life.peer()

    def code_of_run():
        asked = peer.send_all(*[peer.produce_command(b"x", qos=Qos.WRITE) for _ in range(3)])
        life.settle()
        (code,) = {peer.received(one).body.topics[0].code for one in asked}
        return code

    assert [code_of_run(), code_of_run()] == [0, 0]
    for change, back, code in (
        ({"action": "set_topic", "name": "orders", "is_writable": False}, {"is_writable": True}, 144),
        (
            {"action": "subscribe", "topic": "orders", "app": "shop", "producer": {"black_list": ["127.0.0.1"]}},
            {"producer": {"black_list": []}},
            146,
        ),
        ({"action": "set_broker", "writable": False}, {"writable": True}, 193),
    ):
        life.ask(**change)
        assert code_of_run() == code
        life.ask(**{**change, **back})
        assert [code_of_run(), code_of_run()] == [0, 0]
    life.ask("drop_topic", name="orders")
    assert code_of_run() == 189


# --- UNIQ_ID ---------------------------------------------------------------------------------------------------------


def sends(peer, body=b"x", uniq_id="1", **details):
    code, results = peer.produce(body, attributes={"UNIQ_ID": uniq_id}, **details)
    return code, results[0]


@both
def test_a_message_sent_again_under_its_id_is_stored_once_and_answered_the_same(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    first = sends(peer)
    assert sends(peer) == first
    assert sends(life.peer(dialect=dialect), partition=1) == first, "wherever it is sent"
    assert sends(peer, b"y", "2")[1].index == 1
    assert life.stored() == [b"x", b"y"]


@both
@pytest.mark.parametrize("end", ["restart", "kill", "lose_power"])
def test_an_id_is_remembered_as_long_as_its_message(dialect, end):
    life = make_broker()
    first = sends(life.peer(dialect=dialect))
    getattr(life, end)()
    assert sends(life.peer(dialect=dialect)) == first
    getattr(life, end)()
    assert life.stored() == [b"x"]


def test_an_id_whose_message_was_lost_with_the_power_is_forgotten():
    life = make_broker()
    assert sends(life.peer(), qos=Qos.WRITE)[0] == 0
    life.lose_power(mode="nothing")
    assert life.stored() == []
    assert sends(life.peer())[1].index == 0
    assert life.stored() == [b"x"]


def test_an_id_outlives_the_segment_head_and_the_checkpoint():
    storage = StorageConfig(segment_bytes=16 << 10, record_bytes_max=8 << 10, checkpoint_bytes=8 << 10)
    life = make_broker(storage=storage)
    first = sends(life.peer())
    for _ in range(20):
        life.peer().produce(bytes(4000))
    assert len(life.journal.bases()) > 3
    life.kill()
    assert sends(life.peer()) == first


def test_a_repeated_send_waits_for_the_sync_of_the_first():
    life = make_broker()
    peer = life.peer()
    life.sync()
    peer.send(peer.produce_command(b"x", qos=Qos.WRITE, attributes={"UNIQ_ID": "1"}))
    life.engine.end_turn()
    again = peer.produce_command(b"x", qos=Qos.FLUSH, attributes={"UNIQ_ID": "1"})
    assert moment_of_answer(life, peer, again, 1) == SYNCED
    assert moment_of_answer(life, peer, again, 1) == WRITTEN, "it is durable by now"


def test_the_same_id_of_another_topic_or_sender_is_another():
    life = make_broker(topics=("orders", "bills"))
    peer = life.peer()
    assert sends(peer)[1].index == 0
    assert sends(peer, topic="bills")[1].index == 0
    assert sends(peer, app="shop")[1].index == 0, "the field of the message was empty before"
    code, (result,) = peer.produce(b"x", block=block_of(b"x", attributes={"UNIQ_ID": "1"}, app="another"))
    assert (code, result.index) == (0, 1)


def test_the_oldest_ids_are_forgotten_first():
    life = make_broker(uniq_ids_max=3)
    peer = life.peer()
    for number in range(4):
        sends(peer, b"%d" % number, str(number))
    assert sends(peer, b"3", "3")[1].index == 3
    assert sends(peer, b"0", "0")[1].index == 4, "forgotten, and stored again"
    assert life.stored() == [b"0", b"1", b"2", b"3", b"0"]


def test_several_messages_with_ids_are_each_remembered_at_their_place():
    life = make_broker()
    peer = life.peer()
    parts = [pack(message_of(b"%d" % number, attributes={"UNIQ_ID": str(number)})) for number in range(3)]
    assert peer.produce(block=MessageBlock(3, (bytearray(b"".join(parts)),)))[0] == 0
    for end in (lambda: None, life.kill):
        end()
        assert [sends(life.peer(), b"%d" % number, str(number))[1].index for number in range(3)] == [0, 1, 2]
    assert life.stored() == [b"0", b"1", b"2"]


def block_with_ids(*ids):
    parts = [pack(message_of(b"%d" % nth, attributes={"UNIQ_ID": one} if one else {})) for nth, one in enumerate(ids)]
    return MessageBlock(len(parts), (bytearray(b"".join(parts)),))


@both
@pytest.mark.parametrize("end", [None, "kill"])
def test_I04_known_ids_of_a_batch_are_answered_with_their_place_and_the_others_are_stored(dialect, end):
    life = make_broker()
    first = sends(life.peer(dialect=dialect), b"first", "b")[1]
    if end:
        getattr(life, end)()
    code, results = life.peer(dialect=dialect).produce(block=block_with_ids("a", "b", "", "c", "a"))
    assert code == 0
    assert [one.index for one in results] == [1, first.index, 2, 3, 1]
    assert life.stored() == [b"first", b"0", b"2", b"3"]
    code, again = life.peer(dialect=dialect).produce(block=block_with_ids("a", "b", "c"))
    assert (code, [one.index for one in again]) == (0, [1, 0, 3])
    assert life.appended() == 4


def test_an_answer_with_known_and_new_messages_waits_for_the_sync_of_both():
    life = make_broker()
    peer = life.peer()
    life.sync()
    peer.send(peer.produce_command(b"x", qos=Qos.WRITE, attributes={"UNIQ_ID": "a"}))
    life.engine.end_turn()
    again = peer.produce_command(qos=Qos.FLUSH, block=block_with_ids("a"))
    assert moment_of_answer(life, peer, again, 1) == SYNCED


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_the_id_of_a_message_that_waits_keeps_its_partition(end):
    life = make_broker()
    due = {"UNIQ_ID": "1", "DELIVER_AT": str(life.clock.wall_ms() + 60_000)}
    code, (result,) = life.peer().produce(b"later", partition=1, attributes=due)
    assert (code, result.partition) == (0, 1)
    for _ in range(2):
        again = life.peer().produce(b"later", partition=1, attributes=due)
        assert (again[0], again[1][0].partition, again[1][0].index) == (0, 1, -1)
        getattr(life, end)()
    life.pass_ms(60_000)
    assert life.stored(partition=1) == [b"later"]


# --- time-outs -------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("timeout_ms", [0, 150, 30_000])
def test_a_producer_is_told_when_its_timeout_has_passed(dialect, timeout_ms):
    life = make_broker(slow_sync_ms=10**9, sync_limit_ms=10**9)
    peer = life.peer(dialect=dialect)
    life.sync()
    asked = peer.send(peer.produce_command(b"x", timeout_ms=timeout_ms))
    life.engine.end_turn()
    allowed_ms = timeout_ms or life.config.produce_timeout_ms
    life.clock.pass_ms(allowed_ms - 1)
    life.engine.tick()
    assert peer.received(asked) is None
    life.clock.pass_ms(1)
    life.engine.tick()
    (entry,) = peer.received(asked).body.topics
    assert (entry.code, entry.results[0].index) == (108, -1)
    life.settle()
    assert life.stored() == [b"x"]


def test_a_sync_that_the_policy_puts_off_is_not_waited_for_longer_than_the_timeout():
    life = make_broker(storage=replace(SMALL, sync_policy=SyncPolicy(every_ms=5000)))
    peer = life.peer()
    life.pass_ms(5000)
    asked = peer.send(peer.produce_command(b"x", timeout_ms=300))
    life.pass_ms(299)
    assert (peer.received(asked), life.engine.tickets) == (None, deque())
    life.pass_ms(1)
    assert peer.received(asked).body.topics[0].code == 108
    life.pass_ms(5000)
    assert life.stored() == [b"x"]


def test_a_run_has_the_timeout_of_its_requests():
    life = make_broker(slow_sync_ms=10**9, sync_limit_ms=10**9)
    peer = life.peer()
    for _ in range(2):
        peer.produce(b"x", timeout_ms=700)
    life.sync()
    asked = peer.send_all(*[peer.produce_command(b"y", timeout_ms=700) for _ in range(5)])
    life.engine.end_turn()
    life.clock.pass_ms(699)
    life.engine.tick()
    assert not any(map(peer.received, asked))
    life.clock.pass_ms(1)
    life.engine.tick()
    assert [peer.received(one).body.topics[0].code for one in asked] == [108] * 5


def test_of_several_topics_the_shortest_timeout_counts():
    life = make_broker(topics=("orders", "bills"), slow_sync_ms=10**9, sync_limit_ms=10**9)
    peer = life.peer()
    life.sync()
    entries = (peer.produce_entry(b"x", timeout_ms=9000), peer.produce_entry(b"y", topic="bills", timeout_ms=500))
    asked = peer.send(ProduceMessage(entries, "shop"))
    life.engine.end_turn()
    life.clock.pass_ms(500)
    life.engine.tick()
    assert [one.code for one in peer.received(asked).body.topics] == [108, 108]


def test_what_looks_like_the_request_before_it_in_a_transaction_is_not_seen():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.ask(AddProducer(("orders",), "shop"))
    tx_id = peer.ask(ProduceMessagePrepare("orders", "shop", 1, "")).body.tx_id
    for _ in range(3):
        entry = TopicProduce("orders", tx_id, 0, 0, block_of(b"x", partition=0))
        assert peer.ask(ProduceMessage((entry,), "shop")).body.topics[0].code == 0
    assert (life.stored(), peer.fetch()) == ([], [])
    assert peer.ask(ProduceMessageCommit("orders", "shop", tx_id)).body.code == 0
    assert peer.fetch() == [b"x", b"x", b"x"]

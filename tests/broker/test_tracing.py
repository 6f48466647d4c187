"""What happened to messages of an archived topic can be read from the topic of events, each thing once."""

from collections import Counter
from dataclasses import replace

import pytest

from broker.fix_archive import ARCHIVE, archive_of, archived_broker, events_of, told
from broker.fix_broker import DOCUMENTED, FULL, JOYQUEUE, TINY, message_of
from lakemq.broker import tracing
from lakemq.broker.tracing import REFUSED_MAX
from lakemq.delivery.trace_record import EVENTS_TOPIC, EventKind
from lakemq.envelope import pack
from lakemq.message import Qos
from lakemq.record import read_fields, write_fields
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import Settle, Settlement, TopicSettlements

PRODUCED, DELIVERED, ACKED, FAILED, RETRY, DEAD, RESENT, EXPIRED, REFUSED = EventKind


def test_the_way_of_a_message_that_is_handled():
    life = archived_broker()
    peer = life.peer().consumes()
    peer.produce(b"one", b"two")
    assert peer.fetch() == [b"one", b"two"]
    life.pass_ms(7)
    assert peer.ack([0, 1]) == 0
    assert told(events_of(life)) == [
        ("produced", "shop", 0, [0, 1]),
        ("delivered", "shop", 1, [0, 1]),
        ("acked", "shop", 1, [0, 1]),
    ]


def test_an_event_says_where_when_and_who():
    life = archived_broker(partitions=2)
    peer = life.peer(host="10.1.2.3").consumes()
    now_ms = life.engine.now().wall_ms
    peer.produce(b"one", partition=1)
    assert peer.fetch() == [b"one"]
    life.pass_ms(7)
    peer.ack([0], partition=1)
    produced, delivered, acked = events_of(life)
    assert (produced.topic, produced.topic_number, produced.partition) == ("orders", life.topic_number("orders"), 1)
    assert (produced.time_ms, acked.time_ms) == (now_ms, now_ms + 7)
    assert produced.client == delivered.client == acked.client == f"{peer.connection.name}@10.1.2.3"
    assert (delivered.elapsed_ms, acked.elapsed_ms) == (0, 7)


def test_a_message_that_fails_dies_and_is_resent():
    life = archived_broker()
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_first_ms": 10, "retry_times": 1})
    peer = life.peer().consumes()
    peer.produce(b"bad")
    peer.fetch()
    peer.ack([0], kind=2)
    life.pass_ms(50)
    (retry,) = peer.messages(peer.ask(peer.fetch_command()))
    said = Settlement(32767, retry.index, 1, -1, "no card")
    peer.ask(Settle((TopicSettlements("orders", (said,)),), "shop"))
    found = events_of(life)
    kinds = [(kind, attempt) for kind, _, attempt, _ in told(found)]
    assert kinds[:2] == [("produced", 0), ("delivered", 1)]
    assert sorted(kinds[2:4]) == [("failed", 1), ("retry", 1)]
    assert kinds[4] == ("delivered", 2)
    assert sorted(kinds[5:]) == [("dead", 2), ("failed", 2)]
    assert {event.first_index for event in found} == {0}
    assert [event.reason for event in found if event.kind == DEAD] == ["exhausted: no card"]
    life.ask("resend_dead", id=1, by="me", to="app")
    assert told(events_of(life, RESENT)) == [("resent", "shop", 0, [0])]


def test_a_retry_that_is_acked_is_acked_at_its_own_index():
    life = archived_broker()
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_first_ms": 10})
    peer = life.peer().consumes()
    peer.produce(b"first", b"second")
    peer.fetch()
    peer.ack([1], kind=2)
    life.pass_ms(10)
    (retry,) = peer.messages(peer.ask(peer.fetch_command()))
    life.pass_ms(30)
    assert peer.ack([retry.index], partition=32767) == 0
    (acked,) = events_of(life, ACKED)
    assert (acked.first_index, acked.attempt, acked.elapsed_ms) == (1, 2, 30)


def test_a_lease_that_runs_out_is_a_failure_and_the_next_delivery_another_attempt():
    life = archived_broker()
    peer = life.peer().consumes()
    peer.produce(b"one")
    peer.fetch(lease_ms=100)
    life.pass_ms(150)
    peer.fetch()
    assert told(events_of(life, DELIVERED, FAILED)) == [
        ("delivered", "shop", 1, [0]),
        ("failed", "shop", 1, [0]),
        ("delivered", "shop", 2, [0]),
    ]


def test_a_message_past_its_time_has_expired_and_is_dead():
    life = archived_broker()
    peer = life.peer().consumes()
    peer.produce(b"late", attributes={"EXPIRE": str(life.engine.now().wall_ms + 50)})
    life.pass_ms(100)
    assert peer.fetch() == []
    assert sorted(kind for kind, _, _, _ in told(events_of(life))) == ["dead", "expired", "produced"]


def test_requests_that_follow_each_other_are_one_row():
    life = archived_broker()
    peer = life.peer()
    for _ in range(20):
        peer.send_all(*[peer.produce_command(b"x") for _ in range(5)])
        life.settle()
    assert told(events_of(life)) == [("produced", "shop", 0, list(range(100)))]


def test_what_lies_further_apart_is_not():
    life = archived_broker()
    peer = life.peer()
    peer.produce(b"x")
    life.pass_ms(21)
    peer.produce(b"x")
    assert len(events_of(life)) == 2


def test_a_clock_that_is_set_makes_another_row():
    life = archived_broker()
    peer = life.peer()
    peer.produce(b"x")
    life.clock.jump_wall(3_600_000)
    peer.produce(b"x")
    first, second = events_of(life)
    assert second.time_ms - first.time_ms == 3_600_000


def test_every_way_into_a_topic_is_noted():
    life = archived_broker()
    peer = life.peer().consumes()
    peer.produce(b"plain")
    peer.produce(b"alike")
    peer.produce((b"a", b"batch"))
    peer.produce(b"later", attributes={"DELIVER_AT": str(life.engine.now().wall_ms + 200)})
    life.pass_ms(300)
    life.ask("resend_range", topic="orders", by="me", partition=0, first=0, last=1, execute=True)
    life.pass_ms(100)
    found = events_of(life, PRODUCED)
    indexes = sorted(i for e in found for i in range(e.first_index, e.first_index + e.index_count))
    assert indexes == list(range(life.appended("orders")))
    assert len(indexes) == 7
    assert told(events_of(life, RESENT)) == [("resent", "", 0, [0, 1])]


def test_a_topic_that_is_not_archived_has_no_events():
    life = archived_broker(topics=("orders", "other"))
    peer = life.peer().consumes("other")
    peer.produce(b"x", topic="other")
    peer.fetch("other")
    peer.ack([0], topic="other")
    assert events_of(life) == []
    life.ask("set_topic", name="orders", is_archived=False)
    peer.produce(b"x")
    assert events_of(life) == []


def test_there_are_no_events_of_events():
    life = archived_broker()
    life.peer().produce(b"x")
    assert len(events_of(life)) == 1
    life.pass_ms(1000)
    assert len(events_of(life)) == 1
    assert life.appended(EVENTS_TOPIC) == 1


def test_only_the_broker_writes_events():
    life = archived_broker()
    life.ask("create_app", name="other")
    life.ask("subscribe", topic=EVENTS_TOPIC, app="shop", producer={})
    assert life.peer().produce(b"forged", topic=EVENTS_TOPIC)[0] == 144
    assert life.appended(EVENTS_TOPIC) == 0


def test_a_turn_that_is_refused_has_not_happened():
    life = archived_broker()
    peer = life.peer().consumes()
    peer.produce(b"first")
    events_of(life)
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert peer.produce(b"refused")[0] == 109
    peer.produce(b"second")
    assert told(events_of(life, PRODUCED)) == [("produced", "shop", 0, [0]), ("produced", "shop", 0, [1])]


def test_events_that_a_full_disk_refuses_are_written_later():
    life = archived_broker()
    peer = life.peer()
    peer.produce(b"first")
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    life.pass_ms(25)
    assert events_of(life) == []
    life.pass_ms(1000)
    assert told(events_of(life)) == [("produced", "shop", 0, [0])]
    assert life.broker.ledger.tracing.dropped_count == 0


def test_more_than_so_many_that_wait_are_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(tracing, "ROWS_MAX", 3)
    life = archived_broker(partitions=5)
    peer = life.peer()
    peer.ask(peer.produce_command(b"x", topic="orders"))
    peer.send_all(*[peer.produce_command(b"x", partition=one) for one in range(1, 5)])
    life.settle()
    assert len(events_of(life)) == 3
    assert life.broker.ledger.tracing.dropped_count == 2


def test_a_kill_loses_the_last_moments_and_no_message():
    life = archived_broker()
    life.peer().produce(b"first")
    events_of(life)
    life.peer().produce(b"second")
    life.kill()
    assert life.stored() == [b"first", b"second"]
    assert told(events_of(life)) == [("produced", "shop", 0, [0])]


def test_a_stop_loses_nothing():
    life = archived_broker()
    life.peer().produce(b"first")
    life.restart()
    assert told(events_of(life)) == [("produced", "shop", 0, [0])]


def test_a_small_store_gets_small_blocks():
    small = replace(TINY, record_bytes_max=2 << 10)
    life = archived_broker(partitions=64, storage=small)
    peer = life.peer()
    peer.send_all(*[peer.produce_command(b"x", partition=one) for one in range(64)])
    life.settle()
    assert len(events_of(life)) == 64
    assert life.appended(EVENTS_TOPIC) > 1
    assert life.broker.ledger.tracing.dropped_count == 0


def test_the_archive_reads_events_and_leaves_none():
    life = archived_broker()
    life.peer().produce(b"x")
    events_of(life)
    archive = archive_of(life)
    assert len(archive.read(topic=EVENTS_TOPIC, index=0)) == 1
    assert len(archive.read(index=0)) == 1
    assert archive.seek(1) == 0
    assert len(events_of(life)) == 1
    assert all(event.app != ARCHIVE for event in events_of(life))


# --- who sent, and what was not taken --------------------------------------------------------------------------------


def test_senders_on_one_host_are_told_apart():
    life = archived_broker()
    one, other = life.peer(host="10.1.2.3"), life.peer(host="10.1.2.3")
    for peer in (one, other, one, other):  # the later ones come as runs, by routes that may be shared
        peer.produce(b"x")
    clients = {event.client: event.index_count for event in events_of(life)}
    assert clients.keys() == {f"{peer.connection.name}@10.1.2.3" for peer in (one, other)}


@pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)
def test_a_send_that_is_refused_is_told_with_its_code_key_and_tags(dialect):
    life = archived_broker(partitions=2)
    peer = life.peer(dialect=dialect, host="10.1.2.3")
    sent = {"business_id": "c-7", "attributes": {"TAGS": "paid", "UNIQ_ID": "order-1"}}
    assert peer.produce(b"x", b"y", partition=9, **(sent | {"attributes": {"TAGS": "paid"}}))[0] == 188
    life.ask("set_topic", name="orders", is_writable=False)
    assert peer.produce(b"x", partition=1, **sent)[0] == 144
    first, second = events_of(life)
    assert (EventKind(first.kind).name, first.app, first.first_index, first.index_count) == ("REFUSED", "shop", -1, 2)
    assert (first.partition, first.client) == (9, f"{peer.connection.name}@10.1.2.3")
    assert first.reason.startswith("188: partition 9 ")
    assert first.reason.endswith(" [key=c-7] [tags=paid]")
    assert (second.reason[:4], second.partition) == ("144:", 1)
    assert second.reason.endswith(" [key=c-7] [tags=paid] [id=order-1]")


def test_runs_that_are_refused_are_told_too():
    life = archived_broker()
    peer = life.peer()
    assert peer.produce(b"a route is learnt", qos=Qos.RECEIVE)[0] == 0
    life.ask("set_app", name="shop", produce_per_second=1)
    assert peer.produce(b"x", qos=Qos.RECEIVE)[0] == 0
    for _ in range(2):
        assert peer.produce(b"x", business_id="k", qos=Qos.RECEIVE)[0] == 74
    refused = [event for event in events_of(life) if event.kind == EventKind.REFUSED]
    assert [event.reason for event in refused] == ["74: the app has used up its rate for sending [key=k]"] * 2


def test_a_flood_of_refused_sends_leaves_room_for_what_did_happen():
    life = archived_broker(partitions=1)
    peer, other = life.peer(), life.peer()
    count = REFUSED_MAX + 50
    asked = peer.send_all(*[peer.produce_command(b"x", partition=5) for _ in range(count)])
    stored = other.send(other.produce_command(b"kept"))
    life.settle()
    assert {peer.received(one).body.topics[0].code for one in asked} == {188}
    assert other.received(stored).body.topics[0].code == 0
    kinds = [EventKind(event.kind).name for event in events_of(life)]
    assert (kinds.count("REFUSED"), kinds.count("PRODUCED")) == (REFUSED_MAX, 1)
    assert life.broker.ledger.tracing.dropped_count == 50


def test_what_cannot_be_read_is_told_without_its_key():
    life = archived_broker()
    peer = life.peer()
    fields, _ = read_fields(pack(message_of(b"x", business_id="k")))
    fields.business_id = b"\xff"
    assert peer.produce(block=MessageBlock(1, (bytearray(write_fields(fields)),)))[0] == 107
    (event,) = events_of(life)
    assert (event.reason[:4], "[" in event.reason) == ("107:", False)


def test_connections_of_one_program_are_told_together():
    """As long as they say which it is; else each connection is told by itself."""
    life = archived_broker()
    ours = [life.peer(version="lakemq-python/9 4711.a3f9", ip="10.1.2.3") for _ in range(3)]
    others = [life.peer(version="other/1", ip="10.1.2.3") for _ in range(2)]
    for peer in (*ours, *others):
        peer.produce(b"x")
    clients = Counter()
    for event in events_of(life):
        clients[event.client] += event.index_count
    assert clients == {"4711.a3f9@10.1.2.3": 3, **{f"{one.connection.name}@10.1.2.3": 1 for one in others}}

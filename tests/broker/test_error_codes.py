"""Every error code that one broker returns, provoked for real; and that a request which failed has changed nothing.

A case is a generator: what stands before its first yield is the situation, what stands behind it provokes the code.
Unless the code says that the message may be written, metadata, ack indexes and partitions are as before, also after a
start from what is on the disk.
"""

import itertools
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from broker.fix_broker import (
    DOCUMENTED,
    EIO,
    FULL,
    JOYQUEUE,
    NEVER,
    SMALL,
    TINY,
    BrokerLife,
    block_of,
    make_broker,
    message_of,
)
from lakemq.broker.admin import ACTIONS
from lakemq.broker.events import MetadataGiven, MetadataStoreFailed, StopAsked
from lakemq.delivery.transactions import TransactionLimits
from lakemq.envelope import pack
from lakemq.errors import DatabaseError, LakeMQError, UnknownError, from_status
from lakemq.message import MESSAGE_BYTES_MAX, Qos
from lakemq.record import read_fields, write_fields
from lakemq.storage.config import StorageConfig
from lakemq.storage.files import segment_name
from lakemq.storage.retention import RetentionPolicy
from lakemq.wire.consume import FetchAckIndex, FetchPartitionMessage, PartitionFetch, TopicPartitionFetch
from lakemq.wire.coordinate import AssignmentWish, FetchAssignedPartition, FindCoordinator
from lakemq.wire.messages import MessageBlock
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.own import ExtendLease, FetchRange, SetFilter
from lakemq.wire.produce import (
    ProduceMessage,
    ProduceMessageCommit,
    ProduceMessagePrepare,
    ProduceMessageRollback,
)
from lakemq.wire.session import AddConnection, AddConsumer, AddProducer, Heartbeat, RemoveProducer

WIRE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")
BOTH = (DOCUMENTED, JOYQUEUE)
ROOMY = StorageConfig(segment_bytes=24 << 20, record_bytes_max=8 << 20)

CANNOT_OCCUR = {
    26: "no queue of requests: what comes too fast is not read for a while",
    94: "a full disk is told as 109, as the promises have it",
    111: "no replicas",
    112: "no replicas",
    113: "no replicas",
    114: "no replicas",
    115: "no replicas",
    116: "no replicas",
    117: "no replicas",
    191: "187 and 188 say so",
}


@dataclass
class Case:
    code: int
    name: str
    act: object
    dialects: tuple
    make: dict = field(default_factory=dict)


CASES = []


def case(code, name, *, only=None, **make):
    """File a case under its code; `make` is for the broker."""

    def file(act):
        CASES.append(Case(code, name, act, (only,) if only else BOTH, make))
        return act

    return file


def codes_in_the_document():
    section = WIRE.partition("\n## 12 Error codes\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines()]
    return {int(row[0]) for row in cells if len(row) == 7 and row[0].isdigit() and row[5] != "–"}


# --- the session -----------------------------------------------------------------------------------------------------


@case(1, "adding a producer without a subscription", topics=("orders", "bills"))
def _(life, dialect):
    life.ask("unsubscribe", topic="bills", app="shop")
    peer = life.peer(dialect=dialect)
    yield
    yield peer.ask(AddProducer(("orders", "bills"), "shop")).status
    assert peer.connection.producers == {}, "all topics or none"


@case(1, "adding a consumer without a subscription", topics=("orders", "bills"))
def _(life, dialect):
    life.ask("unsubscribe", topic="bills", app="shop", role="consumer")
    peer = life.peer(dialect=dialect)
    yield
    yield peer.ask(AddConsumer(("orders", "bills"), "shop")).status
    assert peer.connection.consumers == {}, "all topics or none"


@case(1, "asking where a topic lives that the app has nothing to do with")
def _(life, dialect):
    life.ask("unsubscribe", topic="orders", app="shop")
    peer = life.peer(dialect=dialect)
    yield
    (topic,) = peer.ask(FetchCluster(("orders",), "shop")).body.topics
    yield topic.code
    assert (topic.producer_policy, topic.consumer_policy, topic.partition_groups) == (None, None, ())


@case(2, "a wrong token")
def _(life, dialect):
    peer = life.peer(dialect=dialect, introduces=False)
    yield
    yield peer.introduce(token="not the token").status
    assert peer.ask(FetchCluster((), "shop")).status == 132


@case(2, "an app that does not exist")
def _(life, dialect):
    peer = life.peer("nobody", dialect=dialect, introduces=False)
    yield
    yield peer.introduce().status


@case(2, "a token that has expired")
def _(life, dialect):
    life.ask("add_token", name="shop", token_id="short", token="for a minute", expires_ms=life.clock.wall_ms() + 60_000)
    life.pass_ms(59_999)
    assert life.peer(dialect=dialect, token="for a minute").connection.app == "shop"
    life.pass_ms(1)
    peer = life.peer(dialect=dialect, introduces=False)
    yield
    yield peer.introduce(token="for a minute").status


@case(132, "anything before ADD_CONNECTION")
def _(life, dialect):
    peer = life.peer(dialect=dialect, introduces=False)
    yield
    yield peer.ask(peer.produce_command(b"x")).status


@case(132, "a request of another app")
def _(life, dialect):
    life.ask("create_app", name="bank")
    life.ask("subscribe", topic="orders", app="bank", producer={}, consumer={})
    peer = life.peer(dialect=dialect)
    yield
    yield peer.ask(peer.produce_command(b"x", app="bank")).status
    for command in (
        AddConsumer(("orders",), "bank"),
        AddProducer(("orders",), "bank"),
        FetchCluster(("orders",), "bank"),
        peer.fetch_command(app="bank"),
        peer.ack_command([0], app="bank"),
        FindCoordinator(("orders",), "bank"),
        FetchAssignedPartition((AssignmentWish("orders"),), "bank"),
        ProduceMessagePrepare("orders", "bank"),
        ProduceMessageCommit("orders", "bank", "tx"),
        ProduceMessageRollback("orders", "bank", "tx"),
    ):
        assert peer.ask(command).status == 132, command


@case(131, "introducing oneself again", only=DOCUMENTED)
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    assert peer.introduce(token="not the token", app="bank").status == 131
    yield peer.introduce().status
    assert (peer.is_closed, peer.connection.app, peer.produce(b"x")[0]) == (False, "shop", 0), "it is as it was"


@case(9, "connecting before the broker knows its apps")
def _(life, dialect):
    later = BrokerLife(owns_metadata=False, broker_id=1)
    peer = later.peer(dialect=dialect, introduces=False)
    yield
    yield peer.introduce().status
    assert peer.ask(Heartbeat()).status == 0
    later.engine.handle(MetadataGiven(life.broker.ledger.metadata.pack()))
    assert peer.introduce().status == 0


def test_a_worker_that_was_told_that_there_is_nothing_yet_has_begun():
    later = BrokerLife(owns_metadata=False, broker_id=1)
    later.engine.handle(MetadataGiven(BrokerLife().broker.ledger.metadata.pack()))
    assert later.peer(introduces=False).introduce().status == 2


def test_a_worker_that_knew_its_apps_before_need_not_be_told_again():
    life = make_broker()
    later = BrokerLife(owns_metadata=False, broker_id=1)
    later.engine.handle(MetadataGiven(life.broker.ledger.metadata.pack()))
    later.restart()
    assert later.peer(introduces=False).introduce().status == 0


@case(5, "connecting where the metadata that workers share cannot be read")
def _(life, dialect):
    later = BrokerLife(owns_metadata=False, broker_id=1)
    later.engine.handle(MetadataStoreFailed("[Errno 5] Input/output error"))
    peer = later.peer(dialect=dialect, introduces=False)
    yield
    yield peer.introduce().status


@case(5, "a change that the other workers would not hear of", only=DOCUMENTED)
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    life.engine.handle(MetadataStoreFailed("[Errno 28] No space left on device"))
    yield
    with pytest.raises(DatabaseError, match="No space left"):
        life.ask("create_topic", name="bills")
    yield peer.ask(SetFilter("orders", "shop", "TAGS = 'a'")).status
    life.engine.handle(MetadataStoreFailed(""))
    life.ask("create_topic", name="bills")


@case(5, "a failed message, where no more retries are taken, to who knows only the description", retries_max=0)
def _(life, dialect):
    peer = life.peer(dialect=dialect, version="2.1.0" if dialect is DOCUMENTED else "4.2.8").consumes()
    peer.produce(b"x")
    assert peer.fetch() == [b"x"]
    yield
    code = peer.ack([0], kind=2)
    yield code if dialect is DOCUMENTED else {240: 5}[code]


# --- what the request says -------------------------------------------------------------------------------------------


@case(6, "an unknown type", only=DOCUMENTED)
def _(life, dialect):
    yield from unknown_type(life, dialect, -77)


@case(27, "an unknown type", only=JOYQUEUE)
def _(life, dialect):
    yield from unknown_type(life, dialect, -128)


def unknown_type(life, dialect, answer_type):
    peer = life.peer(dialect=dialect)
    yield
    frame = bytearray(peer.frame(Heartbeat()))
    frame[14] = 77
    peer.pipe.feed(frame)
    life.settle()
    answer = peer.received(peer.stray[-1] + 1)
    yield answer.status
    assert (answer.type, peer.is_closed) == (answer_type, False)
    assert peer.ask(Heartbeat()).status == 0


@case(27, "a type that only the documented dialect has", only=JOYQUEUE)
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    peer.form = peer.life.peer(dialect=DOCUMENTED).form
    yield
    found = {
        peer.ask(one).status for one in (FetchAckIndex((), "shop"), FetchRange((), "shop"), ExtendLease((), "shop"))
    }
    (code,) = found
    yield code


@case(28, "a payload that ends inside a field", only=JOYQUEUE)
def _(life, dialect):
    yield from cut_payload(life, dialect)


@case(107, "a payload that ends inside a field", only=DOCUMENTED)
def _(life, dialect):
    yield from cut_payload(life, dialect)


def cut_payload(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    whole = peer.frame(peer.produce_command(b"x"))
    cut = bytearray(whole[:-3])
    cut[:4] = len(cut).to_bytes(4, "big")
    peer.pipe.feed(cut)
    life.settle()
    answer = peer.received(peer.stray[-1] + 1)
    yield answer.status
    assert answer.body is None
    assert not peer.is_closed
    assert peer.ask(Heartbeat()).status == 0


@case(107, "a first request of neither dialect")
def _(life, dialect):
    peer = life.peer(dialect=dialect, introduces=False)
    yield
    frame = bytearray(peer.frame(AddConnection(app="shop"))) + b"!"
    frame[:4] = len(frame).to_bytes(4, "big")
    peer.pipe.feed(frame)
    life.settle()
    yield peer.received(1).status
    assert peer.is_closed


def with_fields(**changed):
    """One message with some fields as no client would write them."""
    fields, _ = read_fields(pack(message_of(b"body")))
    for name, value in changed.items():
        setattr(fields, name, value)
    return MessageBlock(1, (bytearray(write_fields(fields)),))


def refused_block(code, name, block, **make):
    @case(code, name, only=DOCUMENTED, **make)
    def _(life, dialect):
        peer = life.peer(dialect=dialect)
        yield
        found, results = peer.produce(block=block())
        yield found
        assert {(one.partition, one.index, one.start_time_ms) for one in results} <= {(-1, -1, -1)}


refused_block(6, "no messages", lambda: MessageBlock(0))
refused_block(
    6,
    "messages of one topic for two partitions",
    lambda: MessageBlock(2, (bytearray(pack(message_of(b"a", 0)) + pack(message_of(b"b", 1))),)),
)
refused_block(6, "a businessId of 101 characters", lambda: with_fields(business_id="é".encode() * 101))
refused_block(6, "an app of 128 bytes", lambda: with_fields(app=b"a" * 128))
refused_block(6, "a message version nobody knows", lambda: with_fields(system_code=0x0200))
refused_block(6, "reserved bits", lambda: with_fields(system_code=0x2100))
refused_block(6, "an unknown compression", lambda: with_fields(system_code=0x0151))
refused_block(6, "a batch of none", lambda: with_fields(system_code=0x1100, flag=0))
refused_block(6, "a message above 4 MiB", lambda: with_fields(body=bytes(MESSAGE_BYTES_MAX), body_crc=0), storage=ROOMY)
refused_block(6, "more than a record holds", lambda: block_of(bytes(SMALL.record_bytes_max)))
refused_block(6, "a delay beyond the maximum", lambda: block_of(b"x", attributes={"DELIVER_AT": str(1 << 60)}))
refused_block(6, "a delay that is no time", lambda: block_of(b"x", attributes={"DELIVER_AT": "soon"}))
refused_block(6, "a level of delay that is none", lambda: block_of(b"x", attributes={"DELAY_LEVEL": "19"}))
refused_block(8, "a body that is not what its CRC says", lambda: with_fields(body_crc=zlib.crc32(b"another")))
refused_block(107, "a businessId that is not UTF-8", lambda: with_fields(business_id=b"\xff"))
refused_block(107, "attributes that are not UTF-8", lambda: with_fields(attributes=b"\xff"))
refused_block(107, "a batch that says another count", lambda: with_fields(system_code=0x1100, flag=3))


@case(6, "a body above 3 MiB", only=JOYQUEUE, storage=ROOMY)
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    yield peer.produce(bytes((3 << 20) + 1))[0]


@case(6, "a qosLevel out of range", only=DOCUMENTED)
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    codes = {peer.produce(b"x", qos=level)[0] for level in (-1, 4, 127)}
    (code,) = codes
    yield code


@case(6, "a produce request without topics")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    yield peer.ask(ProduceMessage((), "shop")).status


@case(6, "reading no messages of a partition")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    assert peer.read(count=-1) == 6
    yield peer.read(count=0)


@case(6, "an app that cannot be one")
def _(life, dialect):
    peer = life.peer(dialect=dialect, introduces=False)
    yield
    for name in ("", "a.b.c", "a b", "ä", "a" * 128 if dialect is DOCUMENTED else "."):
        assert peer.ask(AddConnection(app=name)).status == 6
    yield peer.introduce(app="-/%|.").status


@case(6, "a namespace with a dot", only=DOCUMENTED)
def _(life, dialect):
    peer = life.peer(dialect=dialect, introduces=False)
    yield
    yield peer.introduce(namespace="a.b").status
    assert peer.ask(FetchCluster((), "shop")).status == 132


@case(6, "more topics than a connection may name", topics=("a", "b", "c"), limits_of={"roles_per_connection_max": 2})
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    assert peer.ask(AddConsumer(("a", "b", "c"), "shop")).status == 6
    assert peer.ask(AddProducer(("a",), "shop")).status == 0
    yield peer.ask(AddConsumer(("b", "c"), "shop")).status
    assert peer.ask(AddConsumer(("b",), "shop")).status == 0


@case(6, "the name of a topic to be made", creates_missing=True)
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    yield peer.produce(b"x", topic="what is this")[0]


# --- the rate, the disk ----------------------------------------------------------------------------------------------


@case(74, "more than the app may send in a second")
def _(life, dialect):
    life.ask("set_app", name="shop", produce_per_second=10)
    peer = life.peer(dialect=dialect)
    assert peer.produce(*[b"x"] * 10)[0] == 0
    yield
    yield peer.produce(b"y")[0]
    life.pass_ms(100)
    assert peer.produce(b"z")[0] == 0
    assert life.stored()[-1] == b"z"


@case(91, "a sync that fails")
def _(life, dialect):
    peers = [life.peer(dialect=dialect) for _ in range(3)]
    life.sync()
    life.disk.fail("sync", EIO, path_contains="journal/")
    yield
    asked = [peer.send(peer.produce_command(b"x", partition=nth % 2)) for nth, peer in enumerate(peers)]
    life.settle()
    (code,) = {peer.received(one).body.topics[0].code for peer, one in zip(peers, asked, strict=True)}
    yield code
    assert life.engine.is_stopped
    assert "sync failed" in life.engine.failure
    assert peers[0].send(Heartbeat()), "it is heard no more"
    life.settle()
    assert peers[0].received(2 + 1) is None


@case(91, "a write that fails")
def _(life, dialect):
    peers = [life.peer(dialect=dialect) for _ in range(2)]
    life.sync()
    life.disk.fail("write", EIO, path_contains="journal/", wrote=30)
    yield
    asked = [peer.send(peer.produce_command(b"x", qos=Qos.WRITE)) for peer in peers]
    life.settle()
    (code,) = {peer.received(one).body.topics[0].code for peer, one in zip(peers, asked, strict=True)}
    yield code
    assert life.engine.is_stopped
    life.kill()
    assert life.appended() == 0, "half a write is none"


@case(91, "an ack that cannot be written")
def _(life, dialect):
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"x")
    assert peer.fetch() == [b"x"]
    life.disk.fail("write", EIO, path_contains="journal/")
    yield
    yield peer.ack([0])
    life.kill()
    assert life.ack_index() == 0


@case(91, "an operator's change that cannot be synced", only=DOCUMENTED)
def _(life, dialect):
    life.sync()
    life.disk.fail("sync", EIO, path_contains="journal/")
    yield
    with pytest.raises(LakeMQError) as caught:
        life.ask("create_topic", name="bills")
    yield caught.value.status


@case(3, "sending while the broker stops")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    life.sync()
    life.engine.handle(StopAsked())
    yield
    yield peer.produce(b"x")[0]
    assert life.appended() == 0


@case(3, "more than may wait to be synced", storage=TINY)
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    life.sync()
    code = 0
    while not code:
        stored = life.appended()
        sent = peer.send(peer.produce_command(bytes(7000), qos=Qos.WRITE))
        life.engine.end_turn()
        code = peer.received(sent).body.topics[0].code
    assert stored > 5
    yield
    yield code
    life.sync()
    assert life.appended() == stored
    assert peer.produce(b"after the sync")[0] == 0


@case(101, "ACK_FLUSH while a sync takes too long")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    life.sync()
    waiting = hang_in_sync(life, peer, timeout_ms=600_000)
    life.clock.pass_ms(life.config.slow_sync_ms)
    life.engine.tick()
    yield
    stored = life.appended()
    refused = peer.send(peer.produce_command(b"late"))
    life.engine.end_turn()
    yield peer.received(refused).body.topics[0].code
    assert life.appended() == stored, "it is not even written"
    weaker = peer.send(peer.produce_command(b"weaker", qos=Qos.WRITE))
    life.engine.end_turn()
    assert peer.received(weaker).body.topics[0].code == 0
    assert peer.received(waiting) is None
    life.settle()
    assert peer.received(waiting).body.topics[0].code == 0
    assert peer.produce(b"in time again")[0] == 0


@case(108, "a sync that does not come before the producer's timeout")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    life.sync()
    waiting = hang_in_sync(life, peer, timeout_ms=300)
    yield
    life.clock.pass_ms(299)
    life.engine.tick()
    assert peer.received(waiting) is None
    life.clock.pass_ms(1)
    life.engine.tick()
    yield peer.received(waiting).body.topics[0].code
    life.settle()
    assert life.stored() == [b"waits"], "unknown: here it is"


def hang_in_sync(life, peer, timeout_ms):
    """A produce request whose sync is under way and does not end."""
    waiting = peer.send(peer.produce_command(b"waits", timeout_ms=timeout_ms))
    life.engine.end_turn()
    assert len(life.engine.tickets) == 1
    return waiting


@case(91, "a sync that never ends")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    life.sync()
    waiting = hang_in_sync(life, peer, timeout_ms=600_000)
    yield
    life.clock.pass_ms(life.config.sync_limit_ms)
    life.engine.tick()
    yield peer.received(waiting).body.topics[0].code
    assert life.engine.is_stopped


@case(109, "a full disk", storage=TINY)
def _(life, dialect):
    peer = life.peer(dialect=dialect).consumes()
    life.disk.fail("preallocate", FULL, path_contains="journal/", times=NEVER)
    for number in itertools.count():
        code, _ = peer.produce(b"%d " % number * 500)
        if code:
            break
    before = life.stored()
    yield
    yield peer.produce(b"no room" * 300)[0]
    assert life.stored() == before
    assert (peer.fetch(count=1), peer.ack([0])) == (before[:1], 0), "reads and acks go on"
    life.kill()
    assert (life.stored(), life.ack_index()) == (before, 1)
    life.disk.faults.clear()
    peer = life.peer(dialect=dialect)
    assert peer.produce(b"room again" * 300)[0] == 0


@case(109, "a full disk in the middle of a write")
def _(life, dialect):
    peers = [life.peer(dialect=dialect) for _ in range(2)]
    life.sync()
    life.disk.fail("write", FULL, path_contains="journal/", wrote=50)
    yield
    asked = [peer.send(peer.produce_command(b"x", attributes={"UNIQ_ID": "1"})) for peer in peers]
    life.settle()
    (code,) = {peer.received(one).body.topics[0].code for peer, one in zip(peers, asked, strict=True)}
    yield code
    assert life.appended() == 0
    code, (result,) = peers[0].produce(b"x", attributes={"UNIQ_ID": "1"})
    assert (code, result.index) == (0, 0), "an id whose message was not stored is not remembered"
    life.lose_power()
    assert life.stored() == [b"x"]


@case(110, "a record that is damaged")
def _(life, dialect):
    life.ask("subscribe", topic="orders", app="shop", consumer={"batch_size": 1})
    peer = life.peer(dialect=dialect).consumes()
    for body in (b"first", b"damaged", b"last"):
        peer.produce(body * 10)
    peer.produce(b"elsewhere", partition=1)
    assert peer.read(index=0) == [b"first" * 10, b"damaged" * 10, b"last" * 10]
    path = f"journal/{segment_name(life.journal.bases()[0])}"
    damage(life.disk, path, b"damaged")
    assert peer.fetch(count=1) == [b"first" * 10]
    assert peer.ack([0]) == 0
    yield
    assert peer.read(index=1) == 110
    assert peer.fetch() == [b"elsewhere"], "the others go on"
    yield peer.fetch()
    assert peer.read(index=2) == [b"last" * 10]
    assert (peer.seek(2), peer.fetch()) == (0, [b"last" * 10])


def damage(disk, path, inside):
    """Flip a bit of the file where those bytes are."""
    file = disk.open(path)
    data = file.read_at(0, file.size())
    file.close()
    at = data.index(inside)
    disk.flip_bits(path, Random(1), 1, at, at + 1)


# --- sending and receiving -------------------------------------------------------------------------------------------


@case(134, "sending without a subscription")
def _(life, dialect):
    life.ask("unsubscribe", topic="orders", app="shop", role="producer")
    peer = life.peer(dialect=dialect)
    yield
    yield peer.produce(b"x")[0]


@case(134, "sending without ADD_PRODUCER", only=DOCUMENTED, topics=("orders", "bills"))
def _(life, dialect):
    other = life.peer(dialect=dialect)
    for topic in ("orders", "bills", "orders"):
        assert other.produce(b"y", topic=topic)[0] == 0, "there are routes that may be shared"
    peer = life.peer(dialect=dialect)
    peer.says_add_producer = False
    peer.ask(AddProducer(("bills",), "shop"))
    assert peer.produce(b"y", topic="bills")[0] == 0
    yield
    yield peer.produce(b"x")[0]
    peer.ask(AddProducer(("orders",), "shop"))
    assert [peer.produce(b"x")[0] for _ in range(3)] == [0, 0, 0]
    peer.ask(RemoveProducer(("orders",), "shop"))
    assert peer.produce(b"x")[0] == 134


@case(134, "sending without ADD_PRODUCER, where topics are made", only=DOCUMENTED, creates_missing=True)
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    peer.says_add_producer = False
    yield
    yield peer.produce(b"x", topic="new")[0]


@case(134, "PREPARE without ADD_PRODUCER")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    yield peer.ask(ProduceMessagePrepare("orders", "shop")).status


@case(148, "PREPARE", transactions=TransactionLimits(open_max=1))
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    peer.ask(AddProducer(("orders",), "shop"))
    assert peer.ask(ProduceMessagePrepare("orders", "shop")).body.code == 0
    yield
    answer = peer.ask(ProduceMessagePrepare("orders", "shop"))
    yield answer.body.code
    assert answer.body.tx_id == ""


@case(137, "PREPARE with an id that is open")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    peer.ask(AddProducer(("orders",), "shop"))
    assert peer.ask(ProduceMessagePrepare("orders", "shop", 1, "order-1")).body.code == 0
    yield
    yield peer.ask(ProduceMessagePrepare("orders", "shop", 2, "order-1")).body.code


@case(139, "COMMIT of what was rolled back")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    peer.ask(AddProducer(("orders",), "shop"))
    tx_id = peer.ask(ProduceMessagePrepare("orders", "shop")).body.tx_id
    assert peer.produce(b"x", tx_id=tx_id)[0] == 0
    assert peer.ask(ProduceMessageRollback("orders", "shop", tx_id)).body.code == 0
    yield
    yield peer.ask(ProduceMessageCommit("orders", "shop", tx_id)).body.code


@case(138, "an unknown transaction")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    assert peer.ask(ProduceMessageCommit("orders", "shop", "tx")).body.code == 138
    assert peer.ask(ProduceMessageRollback("orders", "shop", "tx")).body.code == 138
    yield peer.produce(b"x", tx_id="tx")[0]


@case(136, "receiving without ADD_CONSUMER")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    peer.produce(b"x")
    yield
    yield peer.fetch()


@case(136, "receiving without a subscription")
def _(life, dialect):
    life.ask("unsubscribe", topic="orders", app="shop", role="consumer")
    peer = life.peer(dialect=dialect)
    peer.produce(b"x")
    yield
    assert (peer.read(), peer.ack([0]), peer.seek(0), peer.stand()) == (136, 136, 136, -136)
    yield peer.fetch()


@case(140, "acks that are not one run", only=JOYQUEUE)
def _(life, dialect):
    peer = lent(life, dialect)
    yield
    assert (peer.ack([0, 2]), peer.ack([0, 0, 1])) == (140, 140)
    yield peer.ack([1, 1])


@case(140, "an index named twice")
def _(life, dialect):
    peer = lent(life, dialect)
    yield
    assert peer.ack([0, 0, 1]) == 140
    yield peer.ack([1, 1])


@case(140, "acks of what is lent to somebody else", only=DOCUMENTED)
def _(life, dialect):
    lent(life, dialect)
    other = life.peer(dialect=dialect).consumes()
    yield
    yield other.ack([1, 2])


@case(140, "acks of what was never lent", only=DOCUMENTED)
def _(life, dialect):
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"0", b"1", b"2")
    yield
    yield peer.ack([1, 2])


@case(140, "acks of a retry that never was")
def _(life, dialect):
    peer = lent(life, dialect)
    yield
    assert peer.ack([0], partition=32767) == 140
    yield peer.ack([7], partition=32767)


@case(140, "extending what is not lent", only=DOCUMENTED)
def _(life, dialect):
    lent(life, dialect)
    other = life.peer(dialect=dialect).consumes()
    yield
    assert (other.extend(partition=1), other.extend(partition=99)) == (140, 140)
    yield other.extend(partition=0)


@case(184, "an ack of what was never handed out")
def _(life, dialect):
    peer = lent(life, dialect)
    yield
    yield peer.ack([0, 1, 2, 3])


def lent(life, dialect):
    """A consumer with three messages in hand."""
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"0", b"1", b"2")
    assert peer.fetch() == [b"0", b"1", b"2"]
    return peer


@case(184, "reading above the end")
def _(life, dialect):
    peer = lent(life, dialect)
    yield
    assert peer.read(index=3) == []
    yield peer.read(index=4)


@case(184, "reading below the oldest kept", storage=TINY, retention=RetentionPolicy(size_bytes=1))
def _(life, dialect):
    peer = kept_from(life, dialect)
    yield
    assert peer.read(index=-2) == 184
    yield peer.read(index=0)


@case(93, "a seek below the oldest kept", storage=TINY, retention=RetentionPolicy(size_bytes=1))
def _(life, dialect):
    peer = kept_from(life, dialect)
    yield
    assert peer.seek(-3) == 93
    yield peer.seek(0)


def kept_from(life, dialect):
    """A peer at a broker whose first messages are gone."""
    peer = life.peer(dialect=dialect)
    for _ in range(12):
        peer.produce(bytes(3000))
    life.pass_ms(life.config.retention_every_ms)
    assert life.engine.group.first_index(life.topic_number("orders"), 0) > 0
    return peer


@case(92, "a seek beyond the end")
def _(life, dialect):
    peer = lent(life, dialect)
    yield
    yield peer.seek(4)


@case(144, "a topic that is read-only")
def _(life, dialect):
    life.ask("set_topic", name="orders", is_writable=False)
    peer = life.peer(dialect=dialect)
    yield
    yield peer.produce(b"x")[0]


@case(144, "an app that may not send for now")
def _(life, dialect):
    life.ask("subscribe", topic="orders", app="shop", producer={"is_forbidden": True})
    peer = life.peer(dialect=dialect)
    yield
    assert peer.ask(AddProducer(("orders",), "shop")).status == 144
    yield peer.produce(b"x")[0]
    life.ask("subscribe", topic="orders", app="shop", producer={"is_forbidden": False})
    assert peer.produce(b"x")[0] == 0


@case(145, "an app that may not receive for now")
def _(life, dialect):
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"x")
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_forbidden": True})
    yield
    assert peer.read() == 145
    yield peer.fetch()
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_forbidden": False})
    assert peer.fetch() == [b"x"]


@case(144, "an address that may not send", only=JOYQUEUE)
def _(life, dialect):
    yield from sending_from_where_it_may_not(life, dialect)


@case(146, "an address that may not send", only=DOCUMENTED)
def _(life, dialect):
    yield from sending_from_where_it_may_not(life, dialect)


def sending_from_where_it_may_not(life, dialect):
    life.ask("subscribe", topic="orders", app="shop", producer={"black_list": ["10.0.0.1"]})
    peer = life.peer(dialect=dialect, host="10.0.0.1", ip="127.0.0.1")
    assert life.peer(dialect=dialect, host="10.0.0.2", ip="10.0.0.1").produce(b"y")[0] == 0, "its own address counts"
    yield
    yield peer.produce(b"x")[0]


@case(145, "a topic that is write-only")
def _(life, dialect):
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"x")
    life.ask("set_topic", name="orders", is_readable=False)
    yield
    assert peer.read() == 145
    yield peer.fetch()


@case(145, "an address that may not receive", only=JOYQUEUE)
def _(life, dialect):
    yield from receiving_where_it_may_not(life, dialect, 145)


@case(147, "an address that may not receive", only=DOCUMENTED)
def _(life, dialect):
    yield from receiving_where_it_may_not(life, dialect, 147)


def receiving_where_it_may_not(life, dialect, code):
    life.ask("subscribe", topic="orders", app="shop", consumer={"black_list": ["10.0.0.1"]})
    peer = life.peer(dialect=dialect, host="10.0.0.1").consumes()
    peer.produce(b"x")
    yield
    assert peer.read() == code
    yield peer.fetch()


@case(149, "receiving in another data centre than the one that receives across them")
def _(life, dialect):
    life.ask("subscribe", topic="orders", app="shop", consumer={"only_region": "north"})
    elsewhere = life.peer(dialect=dialect, region="south").consumes()
    nowhere = life.peer(dialect=dialect).consumes()
    elsewhere.produce(b"x")
    yield
    assert (elsewhere.read(), nowhere.fetch()) == (149, 149)
    yield elsewhere.fetch()
    assert life.peer(dialect=dialect, region="North").consumes().fetch() == [b"x"]


@case(143, "an ordered partition whose stuck message cannot be read")
def _(life, dialect):
    life.ask("create_topic", name="steps", partitions=1, type="ordered")
    policy = {"is_concurrent": True, "concurrent_prefetch_size": 10, "batch_size": 1}
    life.ask("subscribe", topic="steps", app="shop", producer={}, consumer=policy, start="earliest")
    peer = life.peer(dialect=dialect).consumes("steps")
    for body, key in ((b"first", "a"), (b"second", "b"), (b"third", "b")):
        assert peer.produce(body * 10, topic="steps", business_id=key)[0] == 0
    assert peer.fetch("steps") == [b"first" * 10]
    assert peer.ack([0], topic="steps", kind=2) == 0
    path = f"journal/{segment_name(life.journal.bases()[0])}"
    damage(life.disk, path, b"firstfirst")
    yield
    yield peer.fetch("steps")


@case(186, "receiving while paused")
def _(life, dialect):
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"x")
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_paused": True})
    yield
    assert peer.read() == 186
    yield peer.fetch(wait_ms=1000)


@case(187, "receiving from a partition that is elsewhere")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    for partition in (2, -1, 32766):
        assert (peer.ack([0], partition=partition), peer.seek(0, partition=partition)) == (187, 187)
        assert peer.stand(partition) == -187
    yield peer.read(partition=2)


@case(187, "receiving from a topic that is elsewhere", group_ids=(1,))
def _(life, dialect):
    peer = life.peer(dialect=dialect).consumes()
    yield
    yield peer.fetch()


@case(188, "sending to a partition that is elsewhere")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    assert peer.produce(b"x", partition=32767)[0] == 188
    yield peer.produce(b"x", partition=2)[0]


@case(188, "sending to a topic that is elsewhere", group_ids=(1,))
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    yield peer.produce(b"x", partition=-1)[0]


@case(189, "an unknown topic")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    assert (peer.fetch("bills"), peer.read(topic="bills"), peer.ack([0], topic="bills")) == (189, 189, 189)
    assert (peer.seek(0, topic="bills"), peer.stand(topic="bills")) == (189, -189)
    (topic,) = peer.ask(FetchCluster(("bills",), "shop")).body.topics
    assert (topic.code, topic.partition_groups) == (189, ())
    yield peer.produce(b"x", topic="bills")[0]


@case(190, "asking for a topic none of whose partition groups has a leader", group_ids=(1,))
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    (topic,) = peer.ask(FetchCluster(("orders",), "shop")).body.topics
    yield topic.code
    assert [(group.id, group.leader) for group in topic.partition_groups] == [(1, -1)]
    life.broker.routing.neighbours[1] = 1, "10.0.0.9", 50088
    (topic,) = peer.ask(FetchCluster(("orders",), "shop")).body.topics
    assert (topic.code, topic.partition_groups[0].leader) == (0, 1)


@case(145, "a broker that hands out nothing, to who knows only the description", only=DOCUMENTED)
def _(life, dialect):
    peer = life.peer(dialect=dialect, version="2.1.0").consumes()
    peer.produce(b"x")
    life.ask("set_broker", readable=False)
    yield
    assert peer.read() == 145
    yield peer.fetch()


@case(144, "a broker that takes nothing, to who knows only the description", only=DOCUMENTED)
def _(life, dialect):
    peer = life.peer(dialect=dialect, version="2.1.0")
    peer.produce(b"so that there is a route")
    life.ask("set_broker", writable=False)
    yield
    assert peer.ask(AddProducer(("orders",), "shop")).status == 144
    yield peer.produce(b"x")[0]


@case(3, "more than the app may send in a second, to who knows only the description", only=DOCUMENTED)
def _(life, dialect):
    life.ask("set_app", name="shop", produce_per_second=1)
    peer = life.peer(dialect=dialect, version="2.1.0")
    assert peer.produce(b"x")[0] == 0
    yield
    assert peer.produce(b"y")[0] == 3, "also of those that are alike"
    yield peer.produce(b"z", attributes={"UNIQ_ID": "1"})[0]


@case(192, "a broker that hands out nothing")
def _(life, dialect):
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"x")
    life.ask("set_broker", readable=False)
    yield
    assert peer.read() == 192
    yield peer.fetch()
    life.ask("set_broker", readable=True)
    assert peer.fetch() == [b"x"]


@case(193, "a broker that takes nothing")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    life.ask("set_broker", writable=False)
    yield
    yield peer.produce(b"x")[0]


@case(240, "a failed message, where no more dead letters are taken", dead_letters_max=2)
def _(life, dialect):
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_times": 0})
    peer = lent(life, dialect)
    yield
    yield peer.ack([0, 1, 2], kind=2)
    assert peer.fetch() == [b"0", b"1", b"2"], "they come again"


@case(240, "a failed message, where no more retries are taken", retries_max=2)
def _(life, dialect):
    peer = lent(life, dialect)
    yield
    yield peer.ack([0, 1, 2], kind=2)
    assert peer.fetch() == [b"0", b"1", b"2"], "they come again"


# --- the coordinator -------------------------------------------------------------------------------------------------


@case(181, "coordination while the broker stops")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    life.sync()
    life.engine.handle(StopAsked())
    yield
    (found,) = peer.ask(FindCoordinator(("orders",), "shop")).body.coordinators
    assert (found.id, found.code) == (-1, 181)
    yield assigned(peer)


@case(182, "an assignor that does not exist", assignor="by weight")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    yield assigned(peer)


@case(183, "assigning an unknown topic")
def _(life, dialect):
    peer = life.peer(dialect=dialect)
    yield
    yield assigned(peer, "bills")


@case(185, "nothing nearby to assign", data_center="north")
def _(life, dialect):
    peer = life.peer(dialect=dialect, region="south")
    yield
    yield assigned(peer, is_nearby=True)
    assert assigned(peer, is_nearby=False) == 0


def assigned(peer, topic="orders", is_nearby=False):
    answer = peer.ask(FetchAssignedPartition((AssignmentWish(topic, 1000, is_nearby),), "shop"))
    return answer.status or answer.body.topics[0].code


# --- a bug -----------------------------------------------------------------------------------------------------------


@case(4, "a bug in a handler")
def _(life, dialect):
    peer, other = life.peer(dialect=dialect), life.peer(dialect=dialect)
    yield

    def broken(*_):
        raise KeyError("secret")

    life.broker.receiving.handlers[FetchCluster] = broken
    answer = peer.ask(FetchCluster(("orders",), "shop"))
    yield answer.status
    assert "secret" not in answer.error
    assert "KeyError" in answer.error
    assert peer.is_closed
    assert life.broker.metrics.bugs == 1
    assert any("secret" in text and "Traceback" in text for _, text in life.engine.notes), "the log has more"
    assert other.produce(b"x")[0] == 0, "the broker goes on"


@case(141, "a bug while messages are stored")
def _(life, dialect):
    peer, other = life.peer(dialect=dialect), life.peer(dialect=dialect)
    yield
    yield bug_in(life, peer, life.engine.group, "append", peer.produce_command(b"x"))
    assert other.produce(b"y")[0] == 0, "the broker goes on"


@case(142, "a bug while messages are read")
def _(life, dialect):
    peer, reader, other = (life.peer(dialect=dialect).consumes() for _ in range(3))
    peer.produce(b"x")
    yield
    assert bug_in(life, reader, life.engine.group, "read", reader.fetch_command()) == 142
    fetch = FetchPartitionMessage((TopicPartitionFetch("orders", (PartitionFetch(0, 1, 0),)),), "shop")
    yield bug_in(life, peer, life.engine.group, "read", fetch)
    assert other.fetch() == [b"x"], "the broker goes on"


def bug_in(life, peer, owner, name, command):
    """The status of a request that runs into a bug; its connection is closed."""

    def broken(*_, **__):
        raise KeyError("secret")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, broken, raising=False)
        answer = peer.ask(command)
    assert ("secret" in answer.error, "KeyError" in answer.error, peer.is_closed) == (False, True, True)
    return answer.status


# --- the table as tests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "dialect"),
    [
        pytest.param(one, dialect, id=f"{one.code}-{one.name}-{dialect.value}".replace(" ", "-"))
        for one in CASES
        for dialect in one.dialects
    ],
)
def test_a_code_is_returned_where_it_applies(one, dialect):
    life = make_broker(**one.make)
    provoking = one.act(life, dialect)
    next(provoking)
    before = life.facts()
    assert next(provoking) == one.code
    if not from_status(one.code).maybe_written:
        assert life.facts() == before, "it failed and left something"
        assert life.facts_on_disk() == before, "it failed and left something on the disk"
    next(provoking, None)


def test_every_code_of_the_document_is_provoked_here_or_cannot_occur():
    provoked = {one.code for one in CASES}
    assert provoked.isdisjoint(CANNOT_OCCUR)
    assert provoked | CANNOT_OCCUR.keys() == codes_in_the_document()


def test_no_code_that_cannot_occur_is_raised_anywhere_in_the_broker():
    """Where a class of these comes into the broker's modules, its row above is out of date."""
    sources = Path(__file__).parents[2] / "src" / "lakemq"
    text = "".join(
        path.read_text() for part in ("broker", "cluster", "delivery") for path in (sources / part).glob("*.py")
    )
    names = {type(from_status(code)).__name__ for code in CANNOT_OCCUR}
    assert {name for name in names if re.search(rf"\b{name}\b", text)} == set()


def test_a_bug_in_a_run_of_requests_is_told_like_any_other(monkeypatch):
    life = make_broker()
    peer, other = life.peer(), life.peer()
    assert peer.produce(b"the first makes the route")[0] == 0

    def broken(*_, **__):
        raise KeyError("secret")

    monkeypatch.setattr(life.engine.group, "append", broken, raising=False)
    monkeypatch.setattr(life.engine.group, "room_for", broken, raising=False)
    asked = peer.send_all(peer.produce_command(b"x"), peer.produce_command(b"y"))
    life.settle()
    monkeypatch.undo()
    assert peer.received(asked[0]).status == 141
    assert (peer.is_closed, life.broker.metrics.bugs) == (True, 1)
    assert other.produce(b"z")[0] == 0


def test_a_bug_in_an_operators_action_is_told_like_any_other(monkeypatch):
    def broken(*_, **__):
        raise KeyError("secret")

    life = make_broker()
    monkeypatch.setitem(ACTIONS, "show_broker", broken)
    with pytest.raises(UnknownError, match="KeyError"):
        life.ask("show_broker")
    assert life.broker.metrics.bugs == 1
    assert life.peer().produce(b"x")[0] == 0


def test_no_answer_carries_a_traceback():
    """Of all the texts that the cases above give, none names a file or a line."""
    life = make_broker()
    peer = life.peer()
    for command in (FetchCluster((), "bank"), peer.fetch_command("none"), AddConsumer(("none",), "shop")):
        answer = peer.ask(command)
        assert answer.status
        assert not re.search(r"\.py|line \d|Traceback", answer.error)

"""What each vector means, written by hand: the header, the command, and the messages it carries."""

from dataclasses import dataclass
from typing import Any

from lakemq.compression import Compression
from lakemq.errors import (
    AuthenticationError,
    LakeMQError,
    SerializationError,
    TopicNotFoundError,
    UnsupportedCommandError,
)
from lakemq.message import BatchItem, BatchMessage, Message, Source
from lakemq.policy import ConsumerPolicy, ProducerPolicy
from lakemq.record import MessageFields
from lakemq.wire.consume import (
    CommitAck,
    CommitAckAck,
    CommitAckIndex,
    CommitAckIndexAck,
    FetchAckIndex,
    FetchAckIndexAck,
    FetchIndex,
    FetchIndexAck,
    FetchPartitionMessage,
    FetchPartitionMessageAck,
    FetchTopicMessage,
    FetchTopicMessageAck,
    FoundIndex,
    MessageAck,
    PartitionAcks,
    PartitionCode,
    PartitionFetch,
    PartitionIndex,
    PartitionMessages,
    TopicAcks,
    TopicCodes,
    TopicFetch,
    TopicFoundIndexes,
    TopicIndexes,
    TopicMessages,
    TopicPartitionFetch,
    TopicPartitionMessages,
    TopicPartitions,
)
from lakemq.wire.coordinate import (
    AssignmentWish,
    FetchAssignedPartition,
    FetchAssignedPartitionAck,
    FindCoordinator,
    FindCoordinatorAck,
    TopicAssignment,
    TopicCoordinator,
)
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.header import Header
from lakemq.wire.messages import MessageBlock
from lakemq.wire.metadata import ClusterBroker, ClusterPartitionGroup, ClusterTopic, FetchCluster, FetchClusterAck
from lakemq.wire.own import (
    ExtendLease,
    ExtendLeaseAck,
    FetchRange,
    FetchRangeAck,
    FetchTransactions,
    FetchTransactionsAck,
    Inspect,
    InspectAck,
    PartitionRange,
    PartitionTime,
    SetFilter,
    SetFilterAck,
    Settle,
    SettleAck,
    SettledCode,
    Settlement,
    TopicRanges,
    TopicSettledCodes,
    TopicSettlements,
    TopicTimes,
    Transact,
    TransactAck,
    TransactionFound,
)
from lakemq.wire.produce import (
    FetchProduceFeedback,
    FetchProduceFeedbackAck,
    OpenTransaction,
    ProduceMessage,
    ProduceMessageAck,
    ProduceMessageCommit,
    ProduceMessageCommitAck,
    ProduceMessagePrepare,
    ProduceMessagePrepareAck,
    ProduceMessageRollback,
    ProduceMessageRollbackAck,
    ProduceResult,
    TopicProduce,
    TopicProduceResults,
)
from lakemq.wire.session import (
    AddConnection,
    AddConnectionAck,
    AddConsumer,
    AddConsumerAck,
    AddProducer,
    AddProducerAck,
    FetchHealth,
    FetchHealthAck,
    Heartbeat,
    RemoveConnection,
    RemoveConsumer,
    RemoveProducer,
    TopicConsumer,
    TopicProducer,
)
from vectors.vector import load

SENT_MS = 1_700_000_000_000
ANSWERED_MS = SENT_MS + 123
PYTHON_SENT = 1_700_000_000  # joyqueue-python's header has seconds


@dataclass(frozen=True)
class ExpectedMessage:
    """One message: its fields as they are carried, and for the stored layout the value a user gets."""

    fields: MessageFields
    value: Message | BatchMessage | None = None
    client_address: bytes = b""  # in JoyQueue's layout only
    is_written_back: bool = True  # False: other bytes mean the same, and those are what we write
    is_packed_back: bool = True  # False: the same for the value, which always gets a CRC


@dataclass(frozen=True)
class Expected:
    """One vector; `value` is None where it is a header alone."""

    header: Header
    value: Any = None
    error: LakeMQError | None = None
    messages: tuple[ExpectedMessage, ...] = ()
    null_length: int = 0
    is_encoded_back: bool = True  # False: other bytes mean the same, and those are what we write
    optional_bytes: int = 0  # that many bytes at the end may be missing
    ignored_bytes_max: int = 64  # that many more at the end change nothing

    def form(self, dialect: Dialect) -> Form:
        """The form that the value is encoded in."""
        return Form(dialect, self.header.version, self.null_length)


def request(number: int, request_id: int, version: int = 2, qos_bits: int = 1, sent: int = SENT_MS) -> Header:
    """A request's header."""
    return Header(number, request_id, version, qos_bits, sent)


def response(
    number: int,
    request_id: int,
    version: int = 2,
    qos_bits: int = 1,
    sent: int = ANSWERED_MS,
    status: int = 0,
    error: str = "",
) -> Header:
    """A response's header."""
    return Header(-number, request_id, version, qos_bits, sent, is_response=True, status=status, error=error)


def block(name: str, begin: int = 0, end: int | None = None) -> MessageBlock:
    """The messages from `begin` to `end` of that vector, as a command carries them."""
    messages = load(name).messages[begin:end]
    return MessageBlock(len(messages), (b"".join(messages),), Dialect(name.partition("/")[0]))


def fields(**changes: Any) -> MessageFields:
    """The fields of one message; what is not said is nothing, the time SENT_MS and the app shop."""
    plain: dict[str, Any] = {
        "partition": 0,
        "index": 0,
        "term": 0,
        "system_code": 0x010C,
        "priority": 0,
        "send_time_ms": SENT_MS,
        "store_time_ms": 0,
        "body_crc": 0,
        "flag": 0,
        "body": b"",
        "business_id": b"",
        "attributes": b"",
        "extension": b"",
        "app": b"shop",
    }
    return MessageFields(**plain | changes)


HUNDRED_A = b"A" * 100
HUNDRED_A_ZLIB = bytes.fromhex("789c7374a43d000002e91965")
HUNDRED_A_SNAPPY = bytes.fromhex("ff060000734e61507059000d000037cbbc9d640041fe01008a0100")
BATCH_OF_TWO = bytes.fromhex(
    "00000031 000200000015 00 0000 00000002 6d30 00000002 6230 000000000016 00 0000 00000002 6d31 00000000 0003 6b3d76"
)
JOYQUEUE_BATCH_OF_TWO = bytes.fromhex(
    "00000012 00 0000 00000002 6d30 02 6230 0000"  # neither total nor count
    "00000013 00 0000 00000002 6d31 00 0003 6b3d76"
)

CONSUMER_DEFAULTS = ConsumerPolicy(
    is_nearby=False,
    is_paused=False,
    is_archive=False,
    is_retry=True,
    is_sequential=False,
    ack_timeout_ms=300_000,
    batch_size=10,
    is_concurrent=False,
    concurrent_prefetch_size=1,
    delay_ms=0,
    black_list=(),
    error_times=3,
    partitions_max=2147483647,
    retry_read_probability=20,
)

_SESSION = {
    "documented/01_add_connection.request": Expected(
        request(1, 1),
        AddConnection(
            username="张三",
            password="pä",
            app="shop",
            token="t0k3n",
            region="east",
            namespace="",
            version="2.1.0",
            ip="10.1.2.3",
            time_ms=SENT_MS + 42,
            sequence=4294967297,
        ),
    ),
    "documented/01_add_connection.response": Expected(response(1, 1), AddConnectionAck("conn-1", "欢迎")),
    "documented/01_add_connection.refused.response": Expected(
        response(1, 1, status=2, error="bad token ü"), error=AuthenticationError("bad token ü")
    ),
    "documented/02_remove_connection.request": Expected(request(2, 2147483647), RemoveConnection()),
    "documented/02_remove_connection.response": Expected(response(2, 2147483647)),
    "documented/03_add_consumer.request": Expected(request(3, -2), AddConsumer(("orders", "订单"), "shop.east", 3)),
    "documented/03_add_consumer.response": Expected(
        response(3, -2), AddConsumerAck((TopicConsumer("orders", "c-1"), TopicConsumer("订单", "c-2")))
    ),
    "documented/03_add_consumer.null_strings.request": Expected(
        request(3, 3), AddConsumer(("",), "", -1), null_length=-1
    ),
    "documented/03_add_consumer.null_array.request": Expected(
        request(3, 3), AddConsumer((), "shop", 1), is_encoded_back=False
    ),
    "documented/04_remove_consumer.request": Expected(request(4, 4), RemoveConsumer(("订单",), "shop")),
    "documented/04_remove_consumer.response": Expected(response(4, 4)),
    "documented/05_add_producer.request": Expected(request(5, 5), AddProducer(("orders",), "shop", -1)),
    "documented/05_add_producer.response": Expected(response(5, 5), AddProducerAck((TopicProducer("orders", "p-é"),))),
    "documented/06_remove_producer.request": Expected(request(6, 6), RemoveProducer(("orders", ""), "shop")),
    "documented/06_remove_producer.no_topics.request": Expected(request(6, 6), RemoveProducer((), "shop")),
    "documented/06_remove_producer.response": Expected(response(6, 6)),
    "documented/07_heartbeat.request": Expected(request(7, 0, version=1, qos_bits=0, sent=-1), Heartbeat()),
    "documented/07_heartbeat.response": Expected(response(7, 0, version=1, qos_bits=0)),
    "documented/08_fetch_health.request": Expected(request(8, 8, version=4, qos_bits=3), FetchHealth()),
    "documented/08_fetch_health.response": Expected(response(8, 8, version=4, qos_bits=3), FetchHealthAck(87.5)),
    "documented/unknown_command.response": Expected(
        response(120, 120, status=6, error="unknown type 120"), error=UnsupportedCommandError("unknown type 120")
    ),
}

_METADATA = {
    "documented/10_fetch_cluster.request": Expected(
        request(10, 10), FetchCluster(("orders", "订单", "missing"), "shop")
    ),
    "documented/10_fetch_cluster.response": Expected(
        response(10, 10),
        FetchClusterAck(
            (
                ClusterTopic(
                    "orders",
                    ProducerPolicy(
                        is_nearby=True,
                        is_single=False,
                        is_archive=True,
                        weights=(("101", 10), ("102", 300)),
                        black_list=("10.9.9.9", "fe80::1"),
                        timeout_ms=3000,
                    ),
                    ConsumerPolicy(
                        is_nearby=True,
                        is_paused=False,
                        is_archive=True,
                        is_retry=False,
                        is_sequential=True,
                        ack_timeout_ms=300_000,
                        batch_size=20,
                        is_concurrent=True,
                        concurrent_prefetch_size=50,
                        delay_ms=1000,
                        black_list=(),
                        error_times=5,
                        partitions_max=2147483647,
                        retry_read_probability=33,
                    ),
                    type=2,
                    partition_groups=(ClusterPartitionGroup(0, 101, (0, 1)), ClusterPartitionGroup(1, -1, (2,))),
                    code=0,
                ),
                ClusterTopic(
                    "订单",
                    None,
                    ConsumerPolicy(
                        is_nearby=False,
                        is_paused=True,
                        is_archive=False,
                        is_retry=True,
                        is_sequential=False,
                        ack_timeout_ms=60_000,
                        batch_size=10,
                        is_concurrent=False,
                        concurrent_prefetch_size=1,
                        delay_ms=0,
                        black_list=("10.9.9.9",),
                        error_times=3,
                        partitions_max=4,
                        retry_read_probability=20,
                    ),
                    type=1,
                    partition_groups=(ClusterPartitionGroup(7, 102, ()),),
                    code=4,
                ),
            ),
            (
                ClusterBroker(101, "10.1.1.1", 50088, "east", is_nearby=True, weight=100),
                ClusterBroker(102, "10.1.1.2", 50089, "西", is_nearby=False, weight=-1),
            ),
        ),
    ),
    "documented/10_fetch_cluster.no_policies.response": Expected(
        response(10, 10, version=4),
        FetchClusterAck((ClusterTopic("missing", None, None, type=-1, partition_groups=(), code=189),), ()),
    ),
}

_COORDINATE = {
    "documented/20_find_coordinator.request": Expected(request(20, 20), FindCoordinator(("orders", "订单"), "shop")),
    "documented/20_find_coordinator.response": Expected(
        response(20, 20),
        FindCoordinatorAck((TopicCoordinator("orders", 101, "10.1.1.1", 50088, "east", True, 100, 0),)),
    ),
    "documented/20_find_coordinator.none.response": Expected(
        response(20, 20),
        FindCoordinatorAck(
            (
                TopicCoordinator("orders", -1, code=181),
                TopicCoordinator("订单", 102, "mq-2", 50089, "", False, 0, 0),
            )
        ),
    ),
    "documented/21_fetch_assigned_partition.request": Expected(
        request(21, 21),
        FetchAssignedPartition((AssignmentWish("orders", 60_000, True), AssignmentWish("订单", -1, False)), "shop"),
    ),
    "documented/21_fetch_assigned_partition.response": Expected(
        response(21, 21),
        FetchAssignedPartitionAck((TopicAssignment("orders", (0, 1, 32767), 0), TopicAssignment("订单", (), 185))),
    ),
}

_CONSUME = {
    "documented/30_fetch_topic_message.request": Expected(
        request(30, 30),
        FetchTopicMessage((TopicFetch("orders", 10), TopicFetch("订单", -1)), "shop", 300_000, 5000),
    ),
    "documented/30_fetch_topic_message.response": Expected(
        response(30, 30),
        FetchTopicMessageAck(
            (
                TopicMessages("orders", block("documented/30_fetch_topic_message.response")),
                TopicMessages("订单", MessageBlock(0)),
            )
        ),
        messages=(
            ExpectedMessage(
                fields(
                    partition=1,
                    index=42,
                    term=3,
                    priority=2,
                    store_time_ms=5,
                    body_crc=0x3610A686,
                    flag=7,
                    body=b"hello",
                    business_id=b"biz-1",
                    attributes=b"k=v",
                ),
                Message(
                    partition=1,
                    index=42,
                    term=3,
                    priority=2,
                    source=Source.JOYQUEUE,
                    send_time_ms=SENT_MS,
                    store_time_ms=5,
                    flag=7,
                    body=b"hello",
                    business_id="biz-1",
                    attributes={"k": "v"},
                    app="shop",
                ),
            ),
            ExpectedMessage(
                fields(
                    partition=1,
                    index=43,
                    term=3,
                    system_code=0x0186,
                    priority=-1,
                    send_time_ms=SENT_MS + 1,
                    body_crc=0xC2C15BB3,
                    flag=-1,
                    body="订单".encode(),
                    business_id="订单-1".encode(),
                    attributes=rb"""TAGS=red
a\=b=\ c\\d
T\u00E9=x\ty""",
                    extension=b"\x00\xff\x10",
                ),
                Message(
                    partition=1,
                    index=43,
                    term=3,
                    priority=-1,
                    is_ordered=True,
                    is_ipv6=True,
                    source=Source.KAFKA,
                    send_time_ms=SENT_MS + 1,
                    flag=-1,
                    body="订单".encode(),
                    business_id="订单-1",
                    attributes={"TAGS": "red", "a=b": " c\\d", "Té": "x\ty"},
                    extension=b"\x00\xff\x10",
                    app="shop",
                ),
            ),
        ),
    ),
    "documented/30_fetch_topic_message.failed.response": Expected(
        response(30, 31, status=189, error="no topic 订单"),
        FetchTopicMessageAck(
            (
                TopicMessages("orders", block("documented/30_fetch_topic_message.failed.response")),
                TopicMessages("订单", MessageBlock(0)),
            )
        ),
        error=TopicNotFoundError("no topic 订单"),
        messages=(
            ExpectedMessage(
                fields(
                    partition=32767,
                    index=9007199254740993,
                    term=2147483647,
                    system_code=0x012D,
                    store_time_ms=1000,
                    body_crc=0x77FECC3B,
                    body=HUNDRED_A_ZLIB,
                ),
                Message(
                    partition=32767,
                    index=9007199254740993,
                    term=2147483647,
                    compression=Compression.ZLIB,
                    source=Source.JOYQUEUE,
                    send_time_ms=SENT_MS,
                    store_time_ms=1000,
                    body=HUNDRED_A,
                    app="shop",
                ),
            ),
        ),
    ),
    "documented/30_fetch_topic_message.empty.response": Expected(
        response(30, 30, version=3, qos_bits=2),
        FetchTopicMessageAck((TopicMessages("orders", MessageBlock(0)),)),
    ),
    "documented/31_fetch_partition_message.request": Expected(
        request(31, 31),
        FetchPartitionMessage(
            (
                TopicPartitionFetch("orders", (PartitionFetch(0, 10, -1), PartitionFetch(1, 5, 42))),
                TopicPartitionFetch("订单", ()),
            ),
            "shop",
        ),
    ),
    "documented/31_fetch_partition_message.response": Expected(
        response(31, 31),
        FetchPartitionMessageAck(
            (
                TopicPartitionMessages(
                    "orders",
                    (
                        PartitionMessages(0, block("documented/31_fetch_partition_message.response"), 0),
                        PartitionMessages(1, MessageBlock(0), 184),
                    ),
                ),
            )
        ),
        messages=(
            ExpectedMessage(
                fields(
                    index=7,
                    term=1,
                    system_code=0x010D,
                    store_time_ms=2147483647,
                    body_crc=0x9091F3B0,
                    body=HUNDRED_A_SNAPPY,
                    business_id="😀".encode(),
                ),
                Message(
                    partition=0,
                    index=7,
                    term=1,
                    compression=Compression.SNAPPY,
                    source=Source.JOYQUEUE,
                    send_time_ms=SENT_MS,
                    store_time_ms=2147483647,
                    body=HUNDRED_A,
                    business_id="😀",
                    app="shop",
                ),
            ),
        ),
    ),
    "documented/32_commit_ack.request": Expected(
        request(32, 32),
        CommitAck(
            (
                TopicAcks(
                    "orders",
                    (PartitionAcks(1, (MessageAck(1, 42, 0), MessageAck(1, 43, 2))), PartitionAcks(2, ())),
                ),
                TopicAcks("订单", (PartitionAcks(32767, (MessageAck(32767, -1, 3),)),)),
            ),
            "shop",
        ),
    ),
    "documented/32_commit_ack.response": Expected(
        response(32, 32),
        CommitAckAck((TopicCodes("orders", (PartitionCode(1, 0), PartitionCode(2, 140))), TopicCodes("订单", ()))),
    ),
    "documented/33_commit_ack_index.request": Expected(
        request(33, 33),
        CommitAckIndex((TopicIndexes("orders", (PartitionIndex(0, 100), PartitionIndex(1, -2))),), "shop"),
    ),
    "documented/33_commit_ack_index.response": Expected(
        response(33, 33), CommitAckIndexAck((TopicCodes("orders", (PartitionCode(0, 0), PartitionCode(1, 92))),))
    ),
    "documented/34_fetch_ack_index.request": Expected(
        request(34, 34), FetchAckIndex((TopicPartitions("orders", (0, -1)),), "shop")
    ),
    "documented/34_fetch_ack_index.response": Expected(
        response(34, 34),
        FetchAckIndexAck((TopicFoundIndexes("orders", (FoundIndex(0, 44, 0), FoundIndex(-1, -1, 187))),)),
    ),
    "documented/35_fetch_index.request": Expected(
        request(35, 35, version=4),
        FetchIndex((TopicPartitions("orders", (0, 1)), TopicPartitions("订单", ())), "shop"),
    ),
    "documented/35_fetch_index.response": Expected(
        response(35, 35, version=4),
        FetchIndexAck(
            (
                TopicFoundIndexes("orders", (FoundIndex(0, 44, 0), FoundIndex(1, -1, 184))),
                TopicFoundIndexes("订单", ()),
            )
        ),
    ),
}

_PRODUCE = {
    "documented/50_produce_message.request": Expected(
        request(50, 6),
        ProduceMessage((TopicProduce("orders", "", 3000, 3, block("documented/50_produce_message.request")),), "shop"),
        messages=(
            ExpectedMessage(
                fields(
                    partition=1,
                    priority=2,
                    body_crc=0x3610A686,
                    flag=7,
                    body=b"hello",
                    business_id=b"biz-1",
                    attributes=rb"""a\ b=c d
x=\=\u4E2D""",
                ),
                Message(
                    partition=1,
                    index=0,
                    priority=2,
                    source=Source.JOYQUEUE,
                    send_time_ms=SENT_MS,
                    flag=7,
                    body=b"hello",
                    business_id="biz-1",
                    attributes={"a b": "c d", "x": "=中"},
                    app="shop",
                ),
            ),
        ),
    ),
    "documented/50_produce_message.batch.request": Expected(
        request(50, 7),
        ProduceMessage(
            (TopicProduce("orders", "", 3000, 3, block("documented/50_produce_message.batch.request")),), "shop"
        ),
        messages=(
            ExpectedMessage(
                fields(
                    partition=1,
                    system_code=0x110C,
                    body_crc=0xA2346A06,
                    flag=2,
                    body=BATCH_OF_TWO,
                ),
                BatchMessage(
                    partition=1,
                    index=0,
                    source=Source.JOYQUEUE,
                    send_time_ms=SENT_MS,
                    items=(BatchItem(b"m0", business_id="b0"), BatchItem(b"m1", attributes={"k": "v"})),
                    app="shop",
                ),
            ),
        ),
    ),
    "documented/50_produce_message.zlib_batch.request": Expected(
        request(50, 8, qos_bits=3),
        ProduceMessage(
            (TopicProduce("orders", "", 3000, 3, block("documented/50_produce_message.zlib_batch.request")),), "shop"
        ),
        messages=(
            ExpectedMessage(
                fields(
                    partition=1,
                    system_code=0x112D,
                    body_crc=0xD5CB13A7,
                    flag=2,
                    body=bytes.fromhex(
                        "7801 01 3100 ceff 00000031 0002"
                        "00000015 05 fffe 00000002 6d30 00000002 6230 0000"
                        "00000016 ff 0001 00000002 6d31 00000000 0003 6b3d76"
                        "970c0655"
                    ),
                ),
                BatchMessage(
                    partition=1,
                    index=0,
                    compression=Compression.ZLIB,
                    source=Source.JOYQUEUE,
                    send_time_ms=SENT_MS,
                    items=(
                        BatchItem(b"m0", business_id="b0", priority=5, flag=-2),
                        BatchItem(b"m1", attributes={"k": "v"}, priority=-1, flag=1),
                    ),
                    app="shop",
                ),
                is_packed_back=False,
            ),
        ),
    ),
    "documented/50_produce_message.attributes.request": Expected(
        request(50, -2147483648, version=3, qos_bits=2),
        ProduceMessage(
            (TopicProduce("orders", "", 2147483647, 2, block("documented/50_produce_message.attributes.request")),),
            "shop",
        ),
        messages=(
            ExpectedMessage(
                fields(
                    partition=-32768,
                    index=9223372036854775807,
                    term=-2147483648,
                    system_code=0x0180,
                    priority=127,
                    body_crc=0xD5D15A8B,
                    flag=-32768,
                    body="中".encode(),
                    attributes=rb"""\#k\!=a\:b\#c\!d
n\nr=\f\r\u0001
\uD83D\uDE00=~\u007F
e=""",
                ),
                Message(
                    partition=-32768,
                    index=9223372036854775807,
                    term=-2147483648,
                    is_ipv6=True,
                    source=Source.JMQ,
                    priority=127,
                    send_time_ms=SENT_MS,
                    flag=-32768,
                    body="中".encode(),
                    attributes={"#k!": "a:b#c!d", "n\nr": "\f\r\x01", "😀": "~\x7f", "e": ""},
                    app="shop",
                ),
            ),
        ),
    ),
    "documented/50_produce_message.two_topics.request": Expected(
        request(50, 50, qos_bits=0),
        ProduceMessage(
            (
                TopicProduce("orders", "tx-1", -1, 0, block("documented/50_produce_message.two_topics.request", 0, 2)),
                TopicProduce("订单", "", 0, 2, block("documented/50_produce_message.two_topics.request", 2)),
            ),
            "shop",
        ),
        messages=(
            ExpectedMessage(
                fields(
                    partition=-1,
                    index=-1,
                    term=-1,
                    system_code=0x0108,
                    priority=9,
                    body=b"a",
                    attributes=b"DELAY_LEVEL=3",
                ),
                Message(
                    partition=-1,
                    index=-1,
                    term=-1,
                    source=Source.MQTT,
                    priority=9,
                    send_time_ms=SENT_MS,
                    body=b"a",
                    attributes={"DELAY_LEVEL": "3"},
                    app="shop",
                ),
                is_packed_back=False,
            ),
            ExpectedMessage(
                fields(
                    partition=-1,
                    index=-1,
                    system_code=0x0100,
                    priority=-128,
                    body_crc=0x71BEEFF9,
                    flag=32767,
                    body=b"b",
                    business_id="é".encode(),
                    extension=b"x",
                ),
                Message(
                    partition=-1,
                    index=-1,
                    source=Source.JMQ,
                    priority=-128,
                    send_time_ms=SENT_MS,
                    flag=32767,
                    body=b"b",
                    business_id="é",
                    extension=b"x",
                    app="shop",
                ),
            ),
            ExpectedMessage(
                fields(system_code=0x010E, send_time_ms=-1, app=b""),
                Message(partition=0, index=0, source=Source.JOYQUEUE, is_ordered=True, send_time_ms=-1),
            ),
        ),
    ),
    "documented/50_produce_message.null_parts.request": Expected(
        request(50, 50),
        ProduceMessage(
            (TopicProduce("orders", "", 5000, 1, block("documented/50_produce_message.null_parts.request")),), "shop"
        ),
        null_length=-1,
        messages=(
            ExpectedMessage(
                fields(
                    partition=1,
                    index=-1,
                    term=-1,
                    system_code=0x0104,
                    priority=-1,
                    store_time_ms=-1,
                    body_crc=-1,
                    app=b"",
                ),
                Message(
                    partition=1,
                    index=-1,
                    term=-1,
                    source=Source.KAFKA,
                    priority=-1,
                    send_time_ms=SENT_MS,
                    store_time_ms=-1,
                ),
                is_written_back=False,
                is_packed_back=False,
            ),
        ),
    ),
    "documented/50_produce_message.response": Expected(
        response(50, 6),
        ProduceMessageAck(
            (
                TopicProduceResults("orders", 0, (ProduceResult(1, 42, SENT_MS), ProduceResult(2, -1, SENT_MS + 1))),
                TopicProduceResults("订单", 188, (ProduceResult(-1, -1, -1),)),
            )
        ),
    ),
    "documented/50_produce_message.undecodable.response": Expected(
        response(50, 6, status=107, error="too short é"), error=SerializationError("too short é")
    ),
    "documented/51_produce_message_prepare.request": Expected(
        request(51, 51), ProduceMessagePrepare("orders", "shop", 1, "order-77"), ignored_bytes_max=3
    ),
    "documented/51_produce_message_prepare.with_timeout.request": Expected(
        request(51, 52), ProduceMessagePrepare("订单", "shop", -1, "订单-7", 600_000), optional_bytes=4
    ),
    "documented/51_produce_message_prepare.response": Expected(response(51, 51), ProduceMessagePrepareAck("tx-é1", 0)),
    "documented/52_produce_message_commit.request": Expected(
        request(52, 52), ProduceMessageCommit("orders", "shop", "tx-1")
    ),
    "documented/52_produce_message_commit.response": Expected(response(52, 52), ProduceMessageCommitAck(138)),
    "documented/53_produce_message_rollback.request": Expected(
        request(53, 53), ProduceMessageRollback("订单", "shop", "tx-é1")
    ),
    "documented/53_produce_message_rollback.response": Expected(response(53, 53), ProduceMessageRollbackAck(0)),
    "documented/54_fetch_produce_feedback.request": Expected(
        request(54, 54), FetchProduceFeedback("shop", "orders", 1, 20, 3000), optional_bytes=8
    ),
    "documented/54_fetch_produce_feedback.response": Expected(
        response(54, 54),
        FetchProduceFeedbackAck(
            (OpenTransaction("orders", "tx-1", "order-77"), OpenTransaction("订单", "tx-é1", "")), 0
        ),
    ),
}

CLIENT_ADDRESS = bytes.fromhex("34c1 0a010203 00000000000000000000")  # 10.1.2.3 port 49460
IPV6_ADDRESS = bytes.fromhex("34c1 20010db8 00000000000000000000")  # the first 14 bytes of 2001:db8::, the same port
LETTERS_ADDRESS = bytes.fromhex("0000000c 616263646566616263646566")


def _joyqueue_cluster(params: tuple[tuple[str, str], ...]) -> FetchClusterAck:
    return FetchClusterAck(
        (
            ClusterTopic(
                "orders",
                ProducerPolicy(
                    is_nearby=True,
                    is_single=False,
                    is_archive=False,
                    weights=(("0", 10),),
                    black_list=("10.9.9.9",),
                    timeout_ms=3000,
                ),
                CONSUMER_DEFAULTS,
                type=0,
                partition_groups=(ClusterPartitionGroup(0, 101, (0, 1)), ClusterPartitionGroup(1, -1, (2, 3))),
                code=0,
                params=params,
            ),
        ),
        (ClusterBroker(101, "10.1.1.1", 50088, "east", is_nearby=True, weight=0, system_code=0, permission=3),),
    )


_JOYQUEUE = {
    "joyqueue/TV1": Expected(
        request(1, 1, version=4),
        AddConnection(
            app="shop",
            token="t0k3n",
            region="east",
            language=0,
            version="4.2.8",
            ip="10.1.2.3",
            time_ms=SENT_MS,
            sequence=1,
        ),
    ),
    "joyqueue/TV2": Expected(
        request(1, 78237, sent=PYTHON_SENT),
        AddConnection(
            username="u",
            password="p",
            app="shop",
            token="t0k3n",
            region="",
            namespace="ns",
            language=2,
            version="2.1.0",
            ip="127.0.0.1",
            time_ms=PYTHON_SENT,
            sequence=1000,
        ),
        null_length=-1,
    ),
    "joyqueue/TV3": Expected(response(1, 1, version=4, sent=SENT_MS), AddConnectionAck("conn-1", "hi")),
    "joyqueue/TV4": Expected(
        response(128, 3, version=4, sent=SENT_MS, status=2, error="bad token"), error=AuthenticationError("bad token")
    ),
    "joyqueue/TV4_success": Expected(response(128, 2, version=4, sent=SENT_MS)),
    "joyqueue/TV5": Expected(response(10, 5, version=4, sent=SENT_MS), _joyqueue_cluster((("k", "v"),))),
    "joyqueue/TV6": Expected(response(10, 5, version=2, sent=SENT_MS), _joyqueue_cluster(())),
    "joyqueue/TV7": Expected(
        request(50, 6, version=4),
        ProduceMessage((TopicProduce("orders", "", 3000, 3, block("joyqueue/TV7")),), "shop"),
        messages=(
            ExpectedMessage(
                fields(
                    partition=1,
                    system_code=0x018C,
                    priority=2,
                    body_crc=0x3610A686,
                    flag=7,
                    body=b"hello",
                    business_id=b"biz-1",
                    attributes=rb"""a\ b=c d
x=\=\u4E2D""",
                ),
                client_address=CLIENT_ADDRESS,
            ),
        ),
    ),
    "joyqueue/TV8": Expected(
        request(50, 7, version=4),
        ProduceMessage((TopicProduce("orders", "", 3000, 3, block("joyqueue/TV8")),), "shop"),
        messages=(
            ExpectedMessage(
                fields(
                    partition=1,
                    system_code=0x118C,
                    body_crc=0x9D5D2DCE,
                    flag=2,
                    body=JOYQUEUE_BATCH_OF_TWO,
                ),
                client_address=CLIENT_ADDRESS,
            ),
        ),
    ),
    "joyqueue/TV9": Expected(
        request(50, 78237, sent=PYTHON_SENT),
        ProduceMessage((TopicProduce("orders", "", 5000, 2, block("joyqueue/TV9")),), "shop"),
        null_length=-1,
        messages=(
            ExpectedMessage(
                fields(
                    partition=1,
                    index=-1,
                    term=-1,
                    system_code=0,
                    priority=-1,
                    store_time_ms=1,
                    body_crc=-1,
                    body=b"hello",
                    business_id=b"biz-1",
                ),
                client_address=LETTERS_ADDRESS,
            ),
        ),
    ),
    "joyqueue/TV10": Expected(
        response(30, 10, version=4, sent=SENT_MS),
        FetchTopicMessageAck((TopicMessages("orders", block("joyqueue/TV10"), 0),)),
        messages=(
            ExpectedMessage(
                fields(
                    partition=1,
                    index=42,
                    term=3,
                    system_code=0x018C,
                    priority=2,
                    store_time_ms=5,
                    body_crc=0x3610A686,
                    flag=7,
                    body=b"hello",
                    business_id=b"biz-1",
                    attributes=b"k=v",
                ),
                client_address=CLIENT_ADDRESS,
            ),
        ),
    ),
    "joyqueue/TV11": Expected(
        request(32, 11, version=4),
        CommitAck((TopicAcks("orders", (PartitionAcks(1, (MessageAck(1, 42, 0), MessageAck(1, 43, 2))),)),), "shop"),
    ),
    "joyqueue/TV12": Expected(
        request(54, 14, version=4),
        FetchProduceFeedback("shop", "orders", 0, long_poll_timeout_ms=3000),
        ignored_bytes_max=3,
    ),
    "joyqueue/heartbeat.request": Expected(request(7, 4, version=4), Heartbeat()),
    "joyqueue/fetch_topic_message.request": Expected(
        request(30, 10, version=4), FetchTopicMessage((TopicFetch("orders", 10),), "shop", 300_000, 5000)
    ),
    "joyqueue/commit_ack.response": Expected(
        response(32, 11, version=4, sent=SENT_MS), CommitAckAck((TopicCodes("orders", (PartitionCode(1, 0),)),))
    ),
    "joyqueue/fetch_index.response": Expected(
        response(35, 12, version=4, sent=SENT_MS),
        FetchIndexAck((TopicFoundIndexes("orders", (FoundIndex(1, 44, 0, left_index=0, right_index=50),)),)),
    ),
    "joyqueue/fetch_cluster_v1.response": Expected(
        response(10, 9, version=1, sent=SENT_MS),
        FetchClusterAck(
            (
                ClusterTopic(
                    "orders",
                    None,
                    ConsumerPolicy(
                        is_nearby=False,
                        is_paused=False,
                        is_archive=False,
                        is_retry=True,
                        is_sequential=True,
                        ack_timeout_ms=300_000,
                        batch_size=10,
                        is_concurrent=True,
                        concurrent_prefetch_size=5,
                        delay_ms=0,
                        black_list=("10.9.9.9",),
                        error_times=3,
                        partitions_max=2147483647,
                        retry_read_probability=20,
                    ),
                    type=1,
                    partition_groups=(ClusterPartitionGroup(0, 101, (0,)),),
                    code=0,
                ),
            ),
            (ClusterBroker(101, "10.1.1.1", 50088, "east", is_nearby=True, weight=0),),
        ),
    ),
    "joyqueue/fetch_index_v2.response": Expected(
        response(35, 12, sent=SENT_MS), FetchIndexAck((TopicFoundIndexes("orders", (FoundIndex(1, 44, 0),)),))
    ),
    "joyqueue/fetch_partition_message.response": Expected(
        response(31, 31, version=4, sent=SENT_MS),
        FetchPartitionMessageAck(
            (
                TopicPartitionMessages(
                    "orders",
                    (
                        PartitionMessages(0, block("joyqueue/fetch_partition_message.response"), 0),
                        PartitionMessages(1, MessageBlock(0, (), Dialect.JOYQUEUE), 184),
                    ),
                ),
            )
        ),
        messages=(
            ExpectedMessage(
                fields(
                    index=7,
                    term=1,
                    system_code=0x012D,
                    store_time_ms=5,
                    body_crc=0x77FECC3B,
                    body=HUNDRED_A_ZLIB,
                    app=b"",
                ),
                client_address=IPV6_ADDRESS,
            ),
        ),
    ),
    "joyqueue/prepare.request": Expected(
        request(51, 13, version=4), ProduceMessagePrepare("orders", "shop", 1, "order-77", 600_000), optional_bytes=4
    ),
}

_OWN = {
    "documented/60_fetch_range.request": Expected(
        request(60, 60),
        FetchRange(
            (TopicTimes("orders", (PartitionTime(0), PartitionTime(1, 1700000000000))), TopicTimes("订单")), "shop.g"
        ),
    ),
    "documented/60_fetch_range.response": Expected(
        response(60, 60),
        FetchRangeAck(
            (
                TopicRanges("orders", (PartitionRange(0, 44, 10, 50, 45), PartitionRange(9, code=187))),
                TopicRanges("no", code=189),
            )
        ),
    ),
    "documented/61_extend_lease.request": Expected(
        request(61, 61), ExtendLease((TopicPartitions("orders", (0, 3)),), "shop.g", 60000)
    ),
    "documented/61_extend_lease.response": Expected(
        response(61, 61), ExtendLeaseAck((TopicCodes("orders", (PartitionCode(0), PartitionCode(3, 140))),))
    ),
    "documented/62_settle.request": Expected(
        request(62, 62),
        Settle(
            (TopicSettlements("orders", (Settlement(0, 7, 1, 30000), Settlement(32767, 9, 2, -1, "bad card"))),),
            "shop.g",
        ),
    ),
    "documented/62_settle.response": Expected(
        response(62, 62),
        SettleAck((TopicSettledCodes("orders", (SettledCode(0, 7), SettledCode(32767, 9, 140))),)),
    ),
    "documented/63_set_filter.request": Expected(request(63, 63), SetFilter("orders", "shop.g", "paid || refund")),
    "documented/63_set_filter.response": Expected(response(63, 63), SetFilterAck()),
    "documented/64_transact.request": Expected(
        request(64, 64),
        Transact("orders", "shop", "mine-1", "order-77", 60000, 0, 1, (block("documented/64_transact.request"),)),
        messages=_PRODUCE["documented/50_produce_message.request"].messages,
    ),
    "documented/64_transact.response": Expected(response(64, 64), TransactAck()),
    "documented/65_fetch_transactions.request": Expected(
        request(65, 65), FetchTransactions("orders", "shop", "xa:", 100)
    ),
    "documented/65_fetch_transactions.response": Expected(
        response(65, 65),
        FetchTransactionsAck((TransactionFound("mine-1", "xa:1:Zw:", 1700000000000, 60000, 3),)),
    ),
    "documented/66_inspect.request": Expected(request(66, 66), Inspect("deliveries", "orders", "shop", "billing", 100)),
    "documented/66_inspect.response": Expected(response(66, 66), InspectAck(0, "billing", b'{"apps":[]}')),
}

EXPECTED: dict[str, Expected] = _SESSION | _METADATA | _COORDINATE | _CONSUME | _PRODUCE | _OWN | _JOYQUEUE

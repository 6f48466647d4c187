"""RocketMQ's remoting requests as bytes, with its binary headers, which spare the broker reading and writing JSON.

How much that is worth is not settled: one short run of each, on a busy machine, showed no clear difference.

The broker may answer the requests of a connection in another order; as all of them are the same, it makes no difference
to what is counted.
"""

from __future__ import annotations

import struct
import time

from peers.bodies import body
from peers.model import Frames, Load, PeerError

PULL_MESSAGE, UPDATE_AND_CREATE_TOPIC, GET_BROKER_CONFIG = 11, 17, 26
SEND_MESSAGE_V2, SEND_BATCH_MESSAGE = 310, 320
BINARY = 1  # how a header is written; 0 is JSON
JAVA, VERSION = 0, 479  # 5.3.3
SUCCESS = 0
SUSPEND, SUBSCRIPTION = 2, 4  # of a pull: it may wait for messages; it says by itself what it subscribes to
SUSPEND_MS = 15_000
GROUP = "bench"
DEFAULT_TOPIC = "TBW102"
READ_AND_WRITE = 6
OFFSET_DIGITS = 19


def frames(load: Load, topic: str) -> Frames:
    if load.compression != "none":
        raise PeerError("RocketMQ's producers do not compress batches")
    queues = range(load.partitions)
    if load.mode == "consume":
        count_max = max(1, load.fetch_bytes // load.body_bytes)
        return Frames("rocketmq", (), of_one_size([pull(topic, k, 0, count_max, load.fetch_bytes) for k in queues]))
    bodies = [body(n, load.body_bytes) for n in range(load.batch)]
    return Frames("rocketmq", (), of_one_size([send(topic, k, bodies) for k in queues]))


def of_one_size(requests: list[bytes]) -> tuple[bytes, ...]:
    if len({len(request) for request in requests}) != 1:
        raise PeerError("RocketMQ's requests differ in size")
    return tuple(requests)


# --- requests ---------------------------------------------------------------------------------------------------------


def send(topic: str, queue: int, bodies: list[bytes]) -> bytes:
    """With unique keys as the Java client sets them, alone and in a batch; the broker would make them otherwise."""
    is_batch = len(bodies) > 1
    fields = {
        "a": GROUP,
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": "4",
        "e": f"{queue:04d}",  # numbers of one width, for requests of one size
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": unique_key(0),
        "j": "0",
        "k": "false",
        "m": "true" if is_batch else "false",
    }
    if not is_batch:
        return request(SEND_MESSAGE_V2, fields, bodies[0])
    return request(SEND_BATCH_MESSAGE, fields, b"".join(element(n, content) for n, content in enumerate(bodies)))


def element(n: int, content: bytes) -> bytes:
    """Of a batch."""
    properties = unique_key(n).encode()
    size = 5 * 4 + len(content) + 2 + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 0, len(content))  # magic, CRC and flag are 0
    return head + content + struct.pack(">h", len(properties)) + properties


def unique_key(n: int) -> str:
    return f"UNIQ_KEY\1{0x7F000001:08X}{n:024X}\2"


def pull(topic: str, queue: int, offset: int, count_max: int, bytes_max: int) -> bytes:
    """`load_rocketmq.c` writes the next offset over the last digits."""
    fields = {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": f"{queue:04d}",
        "maxMsgNums": str(count_max),
        "maxMsgBytes": str(bytes_max),
        "sysFlag": str(SUSPEND | SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(SUSPEND_MS),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        "queueOffset": f"{offset:0{OFFSET_DIGITS}d}",
    }
    return request(PULL_MESSAGE, fields)


def create_topic(name: str, queues: int) -> bytes:
    fields = {
        "topic": name,
        "defaultTopic": DEFAULT_TOPIC,
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(READ_AND_WRITE),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return request(UPDATE_AND_CREATE_TOPIC, fields)


def broker_config() -> bytes:
    return request(GET_BROKER_CONFIG, {})


def request(code: int, fields: dict[str, str], content: bytes = b"") -> bytes:
    pairs = b"".join(
        struct.pack(">h", len(name.encode())) + name.encode() + struct.pack(">i", len(value.encode())) + value.encode()
        for name, value in fields.items()
    )
    header = struct.pack(">hBhiiii", code, JAVA, VERSION, 0, 0, 0, len(pairs)) + pairs  # opaque, flag, remark: none
    return struct.pack(">ii", 4 + len(header) + len(content), BINARY << 24 | len(header)) + header + content


# --- replies, without their length ------------------------------------------------------------------------------------


def outcome(reply: bytes) -> tuple[int, str]:
    """The code of an answer, and its remark."""
    code, _, _, _, _, length = struct.unpack_from(">hBhiii", reply, 4)
    return code, reply[21 : 21 + length].decode(errors="replace")


def config_of(reply: bytes) -> dict[str, str]:
    """What the broker says its settings are."""
    at = 4 + int.from_bytes(reply[1:4], "big")
    return dict(line.split("=", 1) for line in reply[at:].decode().splitlines() if "=" in line)

"""The wire's hot paths, in nanoseconds: scan and stamp a produce request, and encode a fetch response.

    python bench/wire.py [--quick] [--json]

The baseline of each is a plain loop over `struct` that does the same to the same bytes, in the same run.
"""

import struct
import zlib

from lakemq import envelope, record
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.wire.commands import decode_request, encode_request, encode_response
from lakemq.wire.consume import FetchTopicMessageAck, TopicMessages
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.header import Header
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce

from measure import Result, arguments, best_ns, report

COUNT = 100
NOW_MS = 1_700_000_000_123
BODY_BYTES = 960  # about 1 KB with the rest


def body(n: int) -> bytes:
    return (b'{"order":%012d,"city":"Beijing","items":[' % n).ljust(BODY_BYTES, b"7")


def array_frame() -> bytearray:
    packed = [
        envelope.pack(
            Message(
                body=body(n),
                business_id=f"order-{n}",
                attributes={"TAGS": "paid"},
                app="shop",
                partition=0,
                send_time_ms=NOW_MS - 3,
            )
        )
        for n in range(COUNT)
    ]
    return frame(MessageBlock(COUNT, (b"".join(packed),)))


def batch_frame() -> bytearray:
    items = tuple(BatchItem(body(n), f"order-{n}", {"TAGS": "paid"}) for n in range(COUNT))
    return frame(
        MessageBlock(1, (envelope.pack(BatchMessage(items=items, app="shop", partition=0, send_time_ms=NOW_MS - 3)),))
    )


def frame(block: MessageBlock) -> bytearray:
    command = ProduceMessage((TopicProduce("orders", "", 5000, 3, block),), "shop")
    return bytearray(b"".join(encode_request(command, form=Form(), request_id=1, send_time_ms=NOW_MS)))


def take(data: bytearray) -> None:
    """What the broker does with a produce request before it appends: decode, scan, stamp."""
    _, command = decode_request(data, Dialect.DOCUMENTED)
    for topic in command.topics:
        block = topic.messages
        view = block.joined()
        found = record.scan(view, 0, len(view), block.count)
        record.stamp(view, 0, block.count, found.partition, 42, 7, NOW_MS)


def scan_and_stamp(view: memoryview, count: int) -> None:
    record.measure(view, 0, len(view), count)
    record.scan(view, 0, len(view), count)
    record.stamp(view, 0, count, 0, 42, 7, NOW_MS)


def scan_and_stamp_python(view: memoryview, count: int) -> None:
    record.measure_python(view, 0, len(view), count)
    record.scan_python(view, 0, len(view), count)
    record.stamp_python(view, 0, count, 0, 42, 7, NOW_MS)


_HEAD = struct.Struct(">ih12xhxq4xqhi")
_PLACE = struct.Struct(">hqi")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


def struct_loop(view: memoryview, count: int) -> None:
    """The baseline: bounds, CRC and patching with struct, message by message."""
    at, index = 0, 42
    for _ in range(count):
        length, _, code, sent, crc, flag, size = _HEAD.unpack_from(view, at)
        place = at + 47
        if crc not in (0, -1) and zlib.crc32(view[place : place + size]) != crc:
            raise ValueError("crc")
        place += size
        place += 2 + _SHORT.unpack_from(view, place)[0]
        place += 2 + _SHORT.unpack_from(view, place)[0]
        place += 4 + _INT.unpack_from(view, place)[0]
        place += 2 + _SHORT.unpack_from(view, place)[0]
        if place != at + length:
            raise ValueError("bounds")
        _PLACE.pack_into(view, at + 4, 0, index, 7)
        _INT.pack_into(view, at + 29, NOW_MS - sent)
        index += flag if code & 0x1000 else 1
        at += length


def fetch_response(parts: tuple[memoryview, ...]) -> object:
    ack = FetchTopicMessageAck((TopicMessages("orders", MessageBlock(COUNT, parts)),))
    return encode_response(ack, Header(30, 1), dialect=Dialect.DOCUMENTED, send_time_ms=NOW_MS)


def fetch_response_by_struct(messages: list[bytes]) -> bytes:
    payload = struct.pack(">hh6sh", 1, 6, b"orders", len(messages)) + b"".join(messages)
    head = struct.pack(">iIBBibqBh", 26 + len(payload), 0xCAFEBEBE, 2, 3, 1, -30, NOW_MS, 0, 0)
    return head + payload


def main() -> None:
    options = arguments(__doc__ or "")
    repeat = 60 if options.quick else 400
    array, batch = array_frame(), batch_frame()
    _, command = decode_request(array, Dialect.DOCUMENTED)
    view = memoryview(command.topics[0].messages.joined())
    _, command = decode_request(batch, Dialect.DOCUMENTED)
    batch_view = memoryview(command.topics[0].messages.joined())

    baseline = best_ns(lambda: struct_loop(view, COUNT), repeat) / COUNT
    batch_baseline = best_ns(lambda: struct_loop(batch_view, 1), repeat)
    results = []

    def add(name: str, value: float, base: float, unit: str, aim: str = "", most: float | None = None) -> None:
        met = None if most is None else value <= most
        results.append(Result(name, round(value, 1), unit, round(base, 1), round(value / base, 3), aim, met))

    twin = "compiled" if record._hot is not None else "python: no compiled twin"
    value = best_ns(lambda: scan_and_stamp(view, COUNT), repeat) / COUNT
    add(f"scan+stamp, 100 x 1 KB ({twin})", value, baseline, "ns/message", "at most 1600 ns", 1600)
    value = best_ns(lambda: scan_and_stamp_python(view, COUNT), repeat) / COUNT
    add("scan+stamp, 100 x 1 KB (definition)", value, baseline, "ns/message")
    value = best_ns(lambda: take(array), repeat) / COUNT
    add(f"whole produce frame, 100 x 1 KB ({twin})", value, baseline, "ns/message")
    value = best_ns(lambda: scan_and_stamp(batch_view, 1), repeat)
    add(
        f"scan+stamp, batch carrier of 100 x 1 KB ({twin})",
        value,
        batch_baseline,
        "ns/request",
        "at most 10000 ns",
        10_000,
    )
    value = best_ns(lambda: take(batch), repeat)
    crc = best_ns(lambda: zlib.crc32(batch_view), repeat)
    add(f"whole produce frame, batch carrier ({twin})", value, batch_baseline, "ns/request")
    add("for scale: zlib.crc32 of the 100 KB", crc, batch_baseline, "ns/request")

    cut = len(view) // 4
    slices = tuple(view[n * cut : (n + 1) * cut] for n in range(4))
    single = [bytes(view[n * 1024 : (n + 1) * 1024]) for n in range(COUNT)]
    base = best_ns(lambda: fetch_response_by_struct(single), repeat)
    value = best_ns(lambda: fetch_response(slices), repeat)
    add("encode fetch response, 100 x 1 KB in 4 slices", value / COUNT, base / COUNT, "ns/message")
    report(results, options.json)


if __name__ == "__main__":
    main()

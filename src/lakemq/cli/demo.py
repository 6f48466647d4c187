"""`lakemq demo`: the main job end to end, as far as it exists, each step shown with what it did.

Today that is the wire: a producer's bytes arrive in pieces, are cut into frames, checked, stamped and handed to
consumers of both dialects.
"""

import time

from rich.console import Console
from rich.table import Table

from lakemq import envelope, record
from lakemq.compression import Compression
from lakemq.errors import LakeMQError
from lakemq.message import BatchItem, BatchMessage, Message, Qos
from lakemq.wire.commands import decode_request, decode_response, encode_request, encode_response
from lakemq.wire.consume import FetchTopicMessageAck, TopicMessages
from lakemq.wire.dialect import Dialect, Form, level_of_qos
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import Header
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce
from lakemq.wire.session import AddConnection, recognise

_PIECE_BYTES = 37  # an awkward size, as networks like it


def show() -> None:
    """Run the demo on the terminal."""
    console = Console()
    now_ms = time.time_ns() // 1_000_000
    console.print("[bold]LakeMQ demo[/bold]: a message's way over the wire\n")
    frame = _send(console, now_ms)
    block = _receive(console, frame, now_ms)
    _hand_out(console, block, now_ms)
    _refuse(console, frame)
    console.print("\nNext: [bold]lakemq errors[/bold] explains every error code; docs/wire.md has every byte.")


def _send(console: Console, now_ms: int) -> bytes:
    first = Message(
        body=b'{"order": 1, "city": "Beijing"}',
        business_id="order-1",
        attributes={"TAGS": "paid"},
        app="shop",
        send_time_ms=now_ms,
        partition=0,
    )
    items = tuple(BatchItem(b'{"order": %d}' % n, f"order-{n}") for n in range(2, 52))
    batch = BatchMessage(items=items, compression=Compression.ZSTD, app="shop", send_time_ms=now_ms, partition=0)
    packed = envelope.pack(first), envelope.pack(batch)
    plain_bytes = len(envelope.pack_items(items))
    block = MessageBlock(2, (b"".join(packed),))
    command = ProduceMessage(
        (TopicProduce("orders", "", 5000, level_of_qos(Qos.FLUSH, Dialect.DOCUMENTED), block),), "shop"
    )
    frame = b"".join(encode_request(command, form=Form(), request_id=1, send_time_ms=now_ms))
    console.print(
        f"1. [green]produce[/green]: one message and a batch of {len(items)} "
        f"({plain_bytes} bytes, {len(packed[1])} as zstd) in a frame of {len(frame)} bytes"
    )
    return frame


def _receive(console: Console, frame: bytes, now_ms: int) -> MessageBlock:
    decoder = FrameDecoder()
    pieces = [frame[at : at + _PIECE_BYTES] for at in range(0, len(frame), _PIECE_BYTES)]
    frames = [whole for piece in pieces for whole in decoder.feed(piece)]
    console.print(f"2. [green]receive[/green]: {len(pieces)} pieces of {_PIECE_BYTES} bytes gave {len(frames)} frame")
    _, command = decode_request(frames[0], Dialect.DOCUMENTED)
    block: MessageBlock = command.topics[0].messages
    view = block.joined()
    found = record.scan(view, 0, len(view), block.count)
    next_index = record.stamp(view, 0, block.count, found.partition, 1000, 7, now_ms)
    console.print(
        f"3. [green]scan and stamp[/green] in place: bounds and CRC are right; indexes 1000 to {next_index - 1}, term 7"
    )
    return block


def _hand_out(console: Console, block: MessageBlock, now_ms: int) -> None:
    table = Table("dialect", "response", "batch travels as", "messages", "first", "last")
    for dialect in Dialect:
        ack = FetchTopicMessageAck((TopicMessages("orders", block),))
        request = Header(30, request_id=2, version=2 if dialect is Dialect.DOCUMENTED else 4)
        response = b"".join(encode_response(ack, request, dialect=dialect, send_time_ms=now_ms))
        _, received = decode_response(response, dialect)
        assert isinstance(received, FetchTopicMessageAck)
        stored = received.topics[0].messages.stored()
        messages: list[Message] = []
        for value in envelope.unpack_all(stored.joined()):
            messages += value.messages() if isinstance(value, BatchMessage) else [value]
            kind = value.compression.value
        table.add_row(
            dialect.value,
            f"{len(response)} bytes",
            kind,
            str(len(messages)),
            f"{messages[0].index}: {messages[0].body.decode()}",
            f"{messages[-1].index}: {messages[-1].body.decode()}",
        )
    console.print("4. [green]fetch[/green]: the same stored bytes for consumers of both dialects")
    console.print(table)
    hello = AddConnection(app="shop", token="secret", version="1", ip="127.0.0.1", time_ms=now_ms)
    told = []
    for dialect in Dialect:
        frame = b"".join(encode_request(hello, form=Form(dialect, 2), request_id=1, send_time_ms=now_ms))
        told.append(recognise(frame[23:], 2).value)
    console.print(f"   which one a client speaks is told by its first frame: {', '.join(told)}")


def _refuse(console: Console, frame: bytes) -> None:
    damaged = bytearray(frame)
    damaged[frame.index(b"Beijing")] ^= 1
    cut = bytearray(frame[:100])
    cut[0:4] = (100).to_bytes(4, "big")
    console.print("5. [green]refuse[/green] what is not right, with a code and a next step")
    for name, data in (("one bit flipped in a body", damaged), ("a request cut short", cut)):
        try:
            _, command = decode_request(data, Dialect.DOCUMENTED)
            view = command.topics[0].messages.joined()
            record.scan(view, 0, len(view), 2)
        except LakeMQError as error:
            console.print(f"   {name}: [red]{error.status} {type(error).__name__}[/red] {error}")
            console.print(f"   {'':>{len(name)}}  {error.fix}")

"""`lakemq demo`: the main job end to end, as far as it exists, each step shown with what it did.

Today that is the wire and the store: a producer's bytes arrive in pieces, are cut into frames and checked, go into the
journal, survive a crash, and are handed to consumers of both dialects.
"""

import tempfile
import time

from rich.console import Console
from rich.table import Table

from lakemq import envelope, record
from lakemq.compression import Compression
from lakemq.errors import LakeMQError
from lakemq.message import BatchItem, BatchMessage, Message, Qos
from lakemq.storage.recovery import open_group
from lakemq.wire.commands import decode_request, decode_response, encode_request, encode_response
from lakemq.wire.consume import FetchTopicMessageAck, TopicMessages
from lakemq.wire.dialect import Dialect, Form, level_of_qos
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import Header
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce
from lakemq.wire.session import AddConnection, recognise
from lakemq.world.disk import RealDisk

_PIECE_BYTES = 37  # an awkward size, as networks like it


def show() -> None:
    """Run the demo on the terminal."""
    console = Console()
    now_ms = time.time_ns() // 1_000_000
    console.print("[bold]LakeMQ demo[/bold]: a message's way over the wire, into the journal and out again\n")
    frame = _send(console, now_ms)
    block = _receive(console, frame)
    with tempfile.TemporaryDirectory(prefix="lakemq-demo-") as directory:
        stored = _store(console, RealDisk(directory), block, now_ms)
    _hand_out(console, stored, now_ms)
    _refuse(console, frame)
    console.print(
        "\nNext: [bold]lakemq errors[/bold] explains every error code; "
        "[bold]lakemq storage --help[/bold] looks into a data directory; docs/ has every byte."
    )


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


def _receive(console: Console, frame: bytes) -> MessageBlock:
    decoder = FrameDecoder()
    pieces = [frame[at : at + _PIECE_BYTES] for at in range(0, len(frame), _PIECE_BYTES)]
    frames = [whole for piece in pieces for whole in decoder.feed(piece)]
    console.print(f"2. [green]receive[/green]: {len(pieces)} pieces of {_PIECE_BYTES} bytes gave {len(frames)} frame")
    _, command = decode_request(frames[0], Dialect.DOCUMENTED)
    block: MessageBlock = command.topics[0].messages
    return block


def _store(console: Console, disk: RealDisk, block: MessageBlock, now_ms: int) -> MessageBlock:
    view = block.joined()
    found = record.scan(view, 0, len(view), block.count)
    group = open_group(disk)
    start = time.perf_counter()
    done = group.append(1, 0, view, block.count, found.index_count, term=1, now_ms=now_ms)
    group.flush()
    ticket = group.begin_sync()
    assert ticket is not None
    ticket.run()
    group.end_sync(ticket)
    spent_ms = (time.perf_counter() - start) * 1000
    console.print(
        f"3. [green]store[/green]: bounds and CRC are right; indexes {done.first_index} to {done.next_index - 1}, "
        f"synced in {spent_ms:.1f} ms"
    )
    group.abandon()  # as if the process had been killed: nothing is tidied up
    start = time.perf_counter()
    group = open_group(disk)
    slices = group.read(1, 0, 0, found.index_count)
    spent_ms = (time.perf_counter() - start) * 1000
    kept = MessageBlock(sum(one.message_count for one in slices), tuple(bytes(one.messages) for one in slices))
    console.print(
        f"4. [green]crash and recover[/green]: {group.visible_index(1, 0)} messages are there again "
        f"after {spent_ms:.1f} ms, byte for byte: {kept == MessageBlock(block.count, (view,))}"
    )
    group.close()
    return kept


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
    console.print("5. [green]fetch[/green]: the same stored bytes for consumers of both dialects")
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
    console.print("6. [green]refuse[/green] what is not right, with a code and a next step")
    for name, data in (("one bit flipped in a body", damaged), ("a request cut short", cut)):
        try:
            _, command = decode_request(data, Dialect.DOCUMENTED)
            view = command.topics[0].messages.joined()
            record.scan(view, 0, len(view), 2)
        except LakeMQError as error:
            console.print(f"   {name}: [red]{error.status} {type(error).__name__}[/red] {error}")
            console.print(f"   {'':>{len(name)}}  {error.fix}")

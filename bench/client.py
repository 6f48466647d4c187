"""The client against a broker process on this machine: send, send_soon, receive, blocking and asyncio.

    python bench/client.py [--quick] [--json]

The baseline of each is a bare socket that moves the same bytes, laid out and compressed before and not opened after,
to and from the same broker in the same run. Client and broker share the machine, so both count. Bodies are of 1 KB and
differ from one another; batches are as send_soon makes them, about 250 to a carrier.
"""

import asyncio
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count as count_up
from pathlib import Path

import lakemq
from lakemq.client.config import Compressions
from lakemq.client.parcel import Packing, Parcel
from lakemq.client.produce_frame import produce_frame
from lakemq.compression import Compression
from lakemq.record import BATCH_BIT
from lakemq.wire.commands import decode_response, encode_request
from lakemq.wire.consume import FetchTopicMessage, TopicFetch
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import Header
from lakemq.wire.session import AddConnection, AddConsumer, AddProducer

from measure import Result, arguments, report

BODY_BYTES = 1024
BODY_COUNT = 1000  # different ones: a batch of one body repeated would compress to nothing, noise included
PER_CARRIER = 250
WINDOW = 64
WRITE = 3
APP = "bench"
READY_S = 30


def orders() -> list[bytes]:
    """Bodies as they occur: JSON that differs in its values."""
    chance = random.Random(7)
    bodies = []
    for number in range(BODY_COUNT):
        items = [{"sku": chance.randrange(10**8), "price": chance.randrange(10**5) / 100} for _ in range(40)]
        order = {"order": number, "city": chance.choice(("Beijing", "Lyon", "Quito")), "items": items}
        bodies.append(json.dumps(order).encode()[:BODY_BYTES].ljust(BODY_BYTES, b"7"))
    return bodies


ORDERS = orders()
NOISE = [os.urandom(BODY_BYTES) for _ in range(BODY_COUNT)]  # does not get smaller
BODY = ORDERS[0]
_ACK = struct.Struct(">hqb")
_SHORT = struct.Struct(">h")
_PLACE = struct.Struct(">ihq4xh21xh")  # of a message: length, partition, index, systemCode, flag


class Broker:
    """A broker process of our own."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="lakemq-bench-")
        ready = Path(self._home.name) / "ready.json"
        command = [sys.executable, "-m", "lakemq", "dev", "--port", "0", "--admin-port", "0", "--partitions", "4"]
        command += ["--data", f"{self._home.name}/data", "--ready-file", str(ready)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self.port = json.loads(ready.read_text())["port"]
                return
            except (FileNotFoundError, ValueError):
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise SystemExit("the broker did not start") from None
                time.sleep(0.02)

    @property
    def url(self) -> str:
        return f"lakemq://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._home.cleanup()


class Bare:
    """A connection without a client around it."""

    def __init__(self, port: int, topic: str, app: str = APP) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder(1 << 24, 1 << 20)
        self._frames: list[memoryview] = []
        for command in (AddConnection(app=APP), AddProducer((topic,), APP, 1), AddConsumer((topic,), app, 2)):
            self.ask(command)

    def ask(self, command: object) -> memoryview:
        self.send(b"".join(encode_request(command, form=Form(), request_id=1, send_time_ms=0)))
        return self.receive()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> memoryview:
        while not self._frames:
            self._frames = self._decoder.received(self._socket.recv_into(self._decoder.room()))
        return self._frames.pop(0)

    def close(self) -> None:
        self._socket.close()


def frame_of(topic: str, bodies: list[bytes], compression: Compression) -> bytes:
    """A produce request of one carrier, to partition 0."""
    parcel = Parcel(topic, 0, "write", Packing(APP, compression, 100))
    for body in bodies:
        parcel.add(body, b"", "", b"", 0)
    parcel.seal(0)
    parcel.address_to(0)
    size = sum(map(len, parcel.parts))
    return b"".join(produce_frame(topic, APP, 5000, WRITE, len(parcel.heads), parcel.parts, size, 1, 0))


def per_second(count: int, work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def bare_send(broker: Broker, count: int) -> float:
    bare, frame = Bare(broker.port, "bare"), frame_of("bare", [BODY], Compression.LZ4)

    def work() -> None:
        for _ in range(count):
            bare.send(frame)
            bare.receive()

    try:
        return per_second(count, work)
    finally:
        bare.close()


def bare_pipeline(broker: Broker, count: int, bodies: list[bytes], compression: Compression) -> float:
    bare, frame = Bare(broker.port, "bare"), frame_of("bare", bodies[:PER_CARRIER], compression)
    frames = count // PER_CARRIER

    def work() -> None:
        for nth in range(frames + WINDOW):
            if nth < frames:
                bare.send(frame)
            if nth >= WINDOW:
                bare.receive()

    try:
        return per_second(frames * PER_CARRIER, work)
    finally:
        bare.close()


def bare_receive(broker: Broker, topic: str, count: int, group: str) -> float:
    """Fetch and ack, and look only at which indexes came."""
    app = f"{APP}.{group}"
    bare, got = Bare(broker.port, topic, app), 0
    fetch = b"".join(
        encode_request(
            FetchTopicMessage((TopicFetch(topic, 1000),), app, 0, 1000), form=Form(), request_id=1, send_time_ms=0
        )
    )

    def work() -> None:
        nonlocal got
        while got < count:
            bare.send(fetch)
            places = places_of(bare.receive())
            if places is not None:
                bare.send(ack_frame(topic, app, *places))
                bare.receive()
                got += places[2] - places[1]

    try:
        return per_second(count, work)
    finally:
        bare.close()


def places_of(frame: memoryview) -> tuple[int, int, int] | None:
    """Partition, first index and the one after the last; None if nothing came."""
    _, ack = decode_response(frame, Dialect.DOCUMENTED)
    first, last, partition = None, 0, 0
    for part in ack.topics[0].messages.parts:
        at, view = 0, memoryview(part)
        while at < len(view):
            length, partition, index, code, count = _PLACE.unpack_from(view, at)
            first = index if first is None else first
            last = index + (count if code & BATCH_BIT else 1)
            at += length
    return None if first is None else (partition, first, last)


def ack_frame(topic: str, app: str, partition: int, first: int, last: int) -> bytes:
    name, owner = topic.encode(), app.encode()
    acks = b"".join([_ACK.pack(partition, index, 0) for index in range(first, last)])
    head = (b"\0\1", _SHORT.pack(len(name)), name, b"\0\1", _SHORT.pack(partition), _SHORT.pack(last - first))
    payload = b"".join((*head, acks, _SHORT.pack(len(owner)), owner))
    return Header(32, 1, 2, 1, 0).pack(len(payload)) + payload


def send(broker: Broker, count: int) -> float:
    with lakemq.connect(broker.url, app=APP, acks="write") as mq:
        mq.send("single", BODY)

        def work() -> None:
            for _ in range(count):
                mq.send("single", BODY)

        return per_second(count, work)


def send_soon(broker: Broker, count: int, topic: str, bodies: list[bytes], compression: Compressions) -> float:
    with lakemq.connect(broker.url, app=APP, acks="write", compression=compression) as mq:
        mq.send(topic, bodies[0])

        def work() -> None:
            for _ in range(count // BODY_COUNT):
                for body in bodies:
                    mq.send_soon(topic, body)
            mq.flush()

        return per_second(count, work)


def receive(broker: Broker, topic: str, count: int, group: str) -> float:
    with lakemq.connect(broker.url, app=APP) as mq, mq.consumer(topic, group=group) as consumer:

        def work() -> None:
            left = count
            for message in consumer:
                left -= 1
                if len(message.body) != BODY_BYTES:
                    raise AssertionError("not what was sent")
                if not left:
                    break

        return per_second(count, work)


async def aio_send_soon(broker: Broker, count: int) -> float:
    async with lakemq.aio.connect(broker.url, app=APP, acks="write", compression="none") as mq:
        await mq.send("aio", BODY)
        start = time.perf_counter()
        for _ in range(count):
            await mq.send_soon("aio", BODY)
        await mq.flush()
        return count / (time.perf_counter() - start)


async def aio_send(broker: Broker, count: int) -> float:
    async with lakemq.aio.connect(broker.url, app=APP, acks="write") as mq:
        await mq.send("aio-send", BODY)
        start = time.perf_counter()
        for _ in range(count // 100):
            await asyncio.gather(*[mq.send("aio-send", BODY) for _ in range(100)])
        return count // 100 * 100 / (time.perf_counter() - start)


async def aio_receive(broker: Broker, count: int) -> float:
    async with lakemq.aio.connect(broker.url, app=APP) as mq, mq.consumer("aio", group="aio") as consumer:
        start, left = time.perf_counter(), count
        async for message in consumer:
            left -= len(message.body) > 0
            if not left:
                break
        return count / (time.perf_counter() - start)


def main() -> None:
    options = arguments(__doc__ or "")
    many, few, rounds = (60_000, 2000, 2) if options.quick else (200_000, 10_000, 5)
    broker = Broker()
    results: list[Result] = []

    def add(name: str, measured: Callable[[], float], bare: Callable[[], float] | None, aim: float | None) -> None:
        """The best of some rounds, with the bare socket in turns: others use the machine, too."""
        pairs = [(bare() if bare is not None else None, measured()) for _ in range(rounds)]
        value = max(one for _, one in pairs)
        result = Result(name, round(value), "messages/s")
        if bare is not None:
            result.baseline = round(max(one for one, _ in pairs if one is not None))
            result.ratio = round(value / result.baseline, 3)
        if aim is not None:
            result.aim, result.met = f"at least {aim:,.0f}", value >= aim
        results.append(result)

    try:
        add("send, one at a time, acks=write", lambda: send(broker, few), lambda: bare_send(broker, few), 5000)
        kinds: tuple[tuple[str, list[bytes], Compressions], ...] = (
            ("JSON as it is", ORDERS, "none"),
            ("JSON, lz4", ORDERS, "lz4"),
            ("noise, lz4", NOISE, "lz4"),
        )
        for what, bodies, compression in kinds:
            name = what.replace(", ", "-").replace(" ", "-")
            soon = partial(send_soon, broker, many, name, bodies, compression)
            bare = partial(bare_pipeline, broker, many, bodies, Compression(compression))
            add(f"send_soon, 1 KB of {what}", soon, bare, 100_000)
        groups = count_up()

        def in_new_group(receiving: Callable[[Broker, str, int, str], float], topic: str) -> float:
            return receiving(broker, topic, many, f"g{next(groups)}")

        for what, _, _ in kinds[:2]:
            name = what.replace(", ", "-").replace(" ", "-")
            full, bare = partial(in_new_group, receive, name), partial(in_new_group, bare_receive, name)
            add(f"receive, 1 KB of {what}", full, bare, 200_000)
        add("asyncio: send_soon, 1 KB as it is", lambda: asyncio.run(aio_send_soon(broker, many)), None, 100_000)
        add("asyncio: send, 100 at a time", lambda: asyncio.run(aio_send(broker, few)), None, None)
        add("asyncio: receive", lambda: asyncio.run(aio_receive(broker, many)), None, None)
    finally:
        broker.stop()
    report(results, options.json)


if __name__ == "__main__":
    main()

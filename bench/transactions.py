"""Transactions of two messages each, over sockets: a broker process, and one client that has many of them under way.

    python bench/transactions.py [--quick] [--json]

The baseline is a bare socket that sends the same two messages in one plain produce request with ACK_FLUSH, laid out
before, as many under way, to the same broker in the same run: what the messages cost without a transaction. Client and
broker share the machine, so both count.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import lakemq
from client import APP, ORDERS, Bare, Broker, per_second
from lakemq.client.parcel import Packing, Parcel
from lakemq.client.produce_frame import produce_frame
from lakemq.compression import Compression
from lakemq.wire.commands import decode_response, encode_request
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import Transact, TransactOutcome
from lakemq.wire.produce import ProduceMessage, ProduceMessageCommit, ProduceMessagePrepare, TopicProduce

from measure import Result, arguments, report

BODIES = [body[:200] for body in ORDERS]
WINDOW = 100
FLUSH = 0  # the level, as a documented request says it
AIM = 5000


def two_messages(partitions: tuple[int, int] = (0, 0)) -> list[Parcel]:
    """Two messages, in one parcel if they are of one partition."""
    parcels: dict[int, Parcel] = {}
    for partition, body in zip(partitions, BODIES, strict=False):
        parcel = parcels.setdefault(partition, Parcel("bare", partition, "flush", Packing(APP, Compression.NONE, 100)))
        parcel.add_alone(body, b"", b"", 0)
    for partition, parcel in parcels.items():
        parcel.seal(0)
        parcel.address_to(partition)
    return list(parcels.values())


def in_window(bare: Bare, frames: list[bytes]) -> None:
    """Send them all, about so many under way at a time, and wait for the answers."""
    half = WINDOW // 2
    lots = [frames[nth : nth + half] for nth in range(0, len(frames), half)]
    for nth in range(len(lots) + 1):
        if nth < len(lots):
            bare.send(b"".join(lots[nth]))
        for _ in lots[nth - 1] if nth else ():
            frame = bare.receive()
            if len(frame) < 26 or frame[23]:
                raise AssertionError(f"refused: {bytes(frame)!r}")


def bare_produce(broker: Broker, count: int) -> float:
    bare, (parcel,) = Bare(broker.port, "bare"), two_messages()
    size = sum(map(len, parcel.parts))
    frame = b"".join(produce_frame("bare", APP, 5000, FLUSH, len(parcel.heads), parcel.parts, size, 1, 0))
    try:
        return per_second(count, lambda: in_window(bare, [frame] * count))
    finally:
        bare.close()


def bare_transact(broker: Broker, count: int, partitions: tuple[int, int]) -> float:
    bare, parcels = Bare(broker.port, "bare"), two_messages(partitions)
    blocks = tuple(MessageBlock(len(one.heads), tuple(one.parts)) for one in parcels)
    frames = [
        b"".join(
            encode_request(
                Transact("bare", APP, uuid.uuid4().hex, "", 0, 0, TransactOutcome.COMMIT, blocks),
                form=Form(),
                request_id=1,
                send_time_ms=0,
            )
        )
        for _ in range(count)
    ]
    try:
        return per_second(count, lambda: in_window(bare, frames))
    finally:
        bare.close()


def documented(broker: Broker, count: int) -> float:
    """PREPARE, then PRODUCE_MESSAGE and COMMIT in one go: as any client of the protocol may do it."""
    bare, (parcel,) = Bare(broker.port, "bare"), two_messages()
    block = MessageBlock(len(parcel.heads), tuple(parcel.parts))

    def encoded(command: object) -> bytes:
        return b"".join(encode_request(command, form=Form(), request_id=1, send_time_ms=0))

    prepare = encoded(ProduceMessagePrepare("bare", APP, 1))

    def work() -> None:
        for _ in range(count // WINDOW):
            bare.send(prepare * WINDOW)
            ids = [decode_response(bare.receive(), Dialect.DOCUMENTED)[1].tx_id for _ in range(WINDOW)]
            lot = []
            for tx_id in ids:
                entry = TopicProduce("bare", tx_id, 5000, FLUSH, block)
                lot.append(encoded(ProduceMessage((entry,), APP)))
                lot.append(encoded(ProduceMessageCommit("bare", APP, tx_id)))
            bare.send(b"".join(lot))
            for _ in lot:
                frame = bare.receive()
                if frame[23] or frame[26:30] == b"\0\0\0\x8a":
                    raise AssertionError(f"refused: {bytes(frame)!r}")

    try:
        return per_second(count // WINDOW * WINDOW, work)
    finally:
        bare.close()


async def at_once(broker: Broker, count: int, one: Callable[[lakemq.aio.AsyncClient, int], Awaitable[None]]) -> float:
    async with lakemq.aio.connect(broker.url, app=APP, in_flight_max=WINDOW, compression="none") as mq:
        await mq.send("orders", b"first")
        loop = asyncio.get_running_loop()

        async def work(first: int) -> None:
            for nth in range(first, count, WINDOW):
                await one(mq, nth)

        start = loop.time()
        await asyncio.gather(*[work(first) for first in range(WINDOW)])
        return count / (loop.time() - start)


async def collected(mq: lakemq.aio.AsyncClient, nth: int) -> None:
    async with mq.transaction("orders") as tx:
        await tx.send(BODIES[nth % 1000])
        await tx.send(BODIES[(nth + 1) % 1000])


async def over_partitions(mq: lakemq.aio.AsyncClient, nth: int) -> None:
    async with mq.transaction("orders") as tx:
        await tx.send(BODIES[nth % 1000], partition=0)
        await tx.send(BODIES[(nth + 1) % 1000], partition=1)


async def kept(mq: lakemq.aio.AsyncClient, nth: int) -> None:
    async with mq.transaction("orders", id=f"{uuid.uuid4().hex}") as tx:
        await tx.send(BODIES[nth % 1000])
        await tx.send(BODIES[(nth + 1) % 1000])


def blocking(broker: Broker, count: int) -> float:
    with lakemq.connect(broker.url, app=APP, compression="none") as mq:
        mq.send("orders", b"first")

        def work() -> None:
            for nth in range(count):
                with mq.transaction("orders") as tx:
                    tx.send(BODIES[nth % 1000])
                    tx.send(BODIES[(nth + 1) % 1000])

        return per_second(count, work)


def transactions(is_quick: bool) -> list[Result]:
    """All ways to have one, each with its baseline."""
    count, rounds = (3000, 3) if is_quick else (20_000, 5)
    broker = Broker()
    results: list[Result] = []

    def add(name: str, measured: Callable[[], float], aim: float | None = None) -> None:
        """The best of some rounds, with the baseline in turns: others use the machine, too."""
        pairs = [(bare_produce(broker, count), measured()) for _ in range(rounds)]
        baseline, value = (max(column) for column in zip(*pairs, strict=True))
        result = Result(name, round(value), "tx/s", round(baseline), round(value / baseline, 3))
        if aim is not None:
            result.aim, result.met = f"at least {aim:,.0f}", value >= aim
        results.append(result)

    try:
        add("asyncio, 100 at a time", lambda: asyncio.run(at_once(broker, count, collected)), AIM)
        add("asyncio, 100 at a time, two partitions", lambda: asyncio.run(at_once(broker, count, over_partitions)))
        add("asyncio, 100 at a time, with an id", lambda: asyncio.run(at_once(broker, count // 3, kept)))
        add("blocking, one after the other", lambda: blocking(broker, count // 5))
        add("bare socket, TRANSACT", lambda: bare_transact(broker, count, (0, 0)))
        add("bare socket, TRANSACT, two partitions", lambda: bare_transact(broker, count, (0, 1)))
        add("bare socket, PREPARE, PRODUCE, COMMIT", lambda: documented(broker, count))
    finally:
        broker.stop()
    return results


if __name__ == "__main__":
    options = arguments(__doc__ or "")
    report(transactions(options.quick), options.json)

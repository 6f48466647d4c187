"""Peers that mean no good, or cannot do better, while an honest client is served (F27, F50).

    python -m tests.faults.broker_hostile --connections 5000 --mebibytes 1000

idle: connections that only are there. silent: that never say who they are. loris: a byte now and then; halves: frames
that are never finished. flood: connections that come and go, and more than there may be. deaf: consumers that ask for
lots and read nothing. polls: more long polls than may wait. torrent: producers faster than the disk that read nothing.
Each limit of broker/limits.py that this is about must be reached and do what it says; memory stays within it.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lakemq.envelope import pack
from lakemq.message import Message
from lakemq.wire.consume import (
    FetchPartitionMessage,
    FetchTopicMessage,
    PartitionFetch,
    TopicFetch,
    TopicPartitionFetch,
)
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce
from lakemq.wire.session import AddConsumer, AddProducer, Heartbeat

from .broker_disk import injected_meanwhile, until
from .broker_frames import Honest
from .broker_link import ACK_FLUSH, ACK_WRITE, CutError, Link, RefusedError, frame_of, introduction
from .broker_process import FaultBroker, Sections, broker
from .strace import delay, need_strace
from .tools import CannotRunError, finish, run_command, say, scratch

APP = "crowd"
MIB = 1 << 20
BYTES_PER_CONNECTION_MAX = 20_000
LIMITS: Sections = {
    "storage": {"maps_segments": False},  # answers are copies then, and count
    "limits": {
        "connections_max": 700,
        "introduction_ms": "1s",
        "frame_stall_ms": "2s",
        "held_bytes_total_max": "16MiB",
        "output_bytes_max": "1MiB",
        "output_stall_ms": "1s",
        "parked_polls_per_connection_max": 50,
        "parked_polls_max": 120,
    },
}
TORRENT_LIMITS: Sections = {
    "storage": {"maps_segments": False},  # answers are copies then, and count
    "limits": {
        "in_flight_bytes_max": "4MiB",
        "in_flight_bytes_total_max": "16MiB",
        "unsynced_bytes_high": "8MiB",
    },
}


class Scene:
    """A broker, what is wrong with it, and what there is to tell."""

    def __init__(self, one: FaultBroker, connections: int, mebibytes: int) -> None:
        self.broker = one
        self.connections = connections
        self.mebibytes = mebibytes
        self.told: dict[str, Any] = {}
        self.problems: list[str] = []

    async def capped(self, limit: str, at_least: int) -> None:
        """That limit was reached so often, or will be soon."""
        deadline = time.monotonic() + 30
        while (counted := (await asyncio.to_thread(self.broker.capped)).get(limit, 0)) < at_least:
            if time.monotonic() > deadline:
                self.problems.append(f"the limit {limit} was reached {counted} times, not {at_least}")
                return
            await asyncio.sleep(0.1)
        self.told[f"capped_{limit}"] = counted

    def bound(self, what: str, before: int, more_max: int) -> None:
        """Memory of its own since then."""
        grown = self.broker.anon_bytes() - before
        self.told[f"{what}_grown_mib"] = round(grown / MIB, 1)
        if grown > more_max:
            self.problems.append(f"{what}: memory grew by {grown >> 20} MiB; {more_max >> 20} are allowed")


async def connect_many(port: int, count: int, *, at_once: int = 100) -> list[Link]:
    """So many connections on which nothing was said."""
    links: list[Link] = []
    while len(links) < count:
        wanted = min(at_once, count - len(links))
        links += await asyncio.gather(*[Link.connect(port) for _ in range(wanted)])
    return links


async def all_closed(links: list[Link], what: str, seconds: float = 40.0) -> None:
    await until(lambda: not any(link.is_open for link in links), what, seconds)


def drop_all(links: list[Link]) -> None:
    for link in links:
        link.drop()


# --- the scenes ------------------------------------------------------------------------------------------------------


async def idle(scene: Scene) -> None:
    """Each has introduced itself and will receive; then it only says now and then that it is there."""
    one = scene.broker
    warm = await connect_many(one.port, 50)
    await asyncio.gather(*[link.ask(introduction(APP)) for link in warm])
    before = one.rss_bytes()
    links = await connect_many(one.port, scene.connections)
    try:
        for start in range(0, len(links), 500):
            part = links[start : start + 500]
            await asyncio.gather(*[link.ask(introduction(APP)) for link in part])
            await asyncio.gather(*[link.ask(AddConsumer(("quiet",), APP, 1)) for link in part])
        each = (one.rss_bytes() - before) / len(links)
        times = []
        for nth in range(2000):
            began = time.monotonic()
            await links[nth * 7919 % len(links)].ask(Heartbeat())
            times.append(time.monotonic() - began)
        times.sort()
        began = time.monotonic()
        await asyncio.gather(*[link.ask(Heartbeat()) for link in links])
        scene.told |= {
            "idle_connections": len(links),
            "bytes_each": round(each),
            "heartbeat_p50_ms": round(1000 * times[len(times) // 2], 2),
            "heartbeat_p99_ms": round(1000 * times[int(len(times) * 0.99)], 2),
            "heartbeat_all_at_once_ms": round(1000 * (time.monotonic() - began)),
        }
        if each > BYTES_PER_CONNECTION_MAX:
            scene.problems.append(f"{len(links)} idle connections take {each:.0f} bytes each")
    finally:
        drop_all([*warm, *links])
    await until(lambda: one.fd_count() < 60, "the files of the connections are closed")


async def silent(scene: Scene) -> None:
    """Some say nothing at all, others only that they are there."""
    links = await connect_many(scene.broker.port, 60)
    for link in links[::2]:
        await link.ask(Heartbeat())
    await all_closed(links, "those who do not introduce themselves are closed")
    await scene.capped("introduction", 60)


async def loris(scene: Scene) -> None:
    """A byte at a time: whole frames would take for ever."""
    links = await connect_many(scene.broker.port, 60)
    await asyncio.gather(*[link.ask(introduction(APP)) for link in links])
    data = frame_of(FetchPartitionMessage((TopicPartitionFetch("x" * 500, ()),), APP), 9)
    began = time.monotonic()
    sent = 0
    while any(link.is_open for link in links) and time.monotonic() - began < 40:
        for link in links:
            link.write(data[sent : sent + 1])
        sent += 1
        await asyncio.sleep(0.1)
    scene.told["loris_bytes_each"] = sent
    if any(link.is_open for link in links):
        scene.problems.append("frames that come byte by byte are not ended")
    drop_all(links)
    await scene.capped("frame_stall", 60)


async def halves(scene: Scene) -> None:
    """Many frames, each cut short by its last byte, held all at once: more than may be held."""
    one = scene.broker
    before = one.anon_bytes()
    links = await connect_many(one.port, 60)
    await asyncio.gather(*[link.ask(introduction(APP)) for link in links])
    data = frame_of(_produce(b"h" * MIB, ACK_WRITE, topic="halves"), 9)[:-1]
    for link in links:
        link.write(data)
        await asyncio.sleep(0.01)
    await scene.capped("held_bytes", 10)
    still = sum(link.is_open for link in links)
    scene.told["halves_still_held"] = still
    # The limit is looked at once a second: all that came before then was taken.
    scene.bound("halves", before, 16 * MIB + 60 * MIB)
    await all_closed(links, "frames that are never finished are ended")


async def flood(scene: Scene) -> None:
    """Connections that come and go, then more at once than there may be."""
    one = scene.broker
    before = one.anon_bytes()
    came = 0
    began = time.monotonic()
    for _ in range(max(scene.connections * 2 // 100, 10)):
        links = [link for link in await asyncio.gather(*[_try_connect(one.port) for _ in range(100)]) if link]
        came += len(links)
        for nth, link in enumerate(links):
            if nth % 3 == 0:
                link.write(b"GET / HTTP/1.1\r\n\r\n")
            elif nth % 3 == 1:
                link.write(frame_of(Heartbeat(), 1)[:10])
        await asyncio.sleep(0)
        drop_all(links)
    scene.told["flood_connections"] = came
    scene.told["flood_per_second"] = round(came / (time.monotonic() - began))
    await until(lambda: one.fd_count() < 100, "the files of the flood are closed")
    limit = int(LIMITS["limits"]["connections_max"])
    links = [link for link in await asyncio.gather(*[_try_connect(one.port) for _ in range(limit + 200)]) if link]
    await until(lambda: sum(link.is_open for link in links) <= limit, "those beyond connections_max are closed")
    still = sum(link.is_open for link in links)
    scene.told["open_of_too_many"] = still
    if still < limit - 100:
        scene.problems.append(f"of {limit + 200} connections {still} were kept; {limit} are allowed")
    await scene.capped("connections", 150)
    drop_all(links)
    await until(lambda: one.fd_count() < 100, "the files of the crowd are closed")
    scene.bound("flood", before, 32 * MIB)


async def _try_connect(port: int) -> Link | None:
    try:
        return await Link.connect(port, seconds=20)
    except (CutError, TimeoutError):
        return None


async def deaf(scene: Scene) -> None:
    """Consumers that ask for far more than they ever read."""
    one = scene.broker
    writer = await Link.open(one.port, APP)
    for _ in range(8):
        ack = await writer.ask(_produce(b"d" * MIB, ACK_FLUSH, topic="large"), ACK_FLUSH)
        assert ack.topics[0].code == 0, ack
    before = one.anon_bytes()
    links = []
    for _ in range(8):
        link = await Link.connect(one.port, receive_bytes=4096)
        links.append(link)
        await link.ask(introduction(APP))
        await link.ask(AddConsumer(("large",), APP, 1))
        link.stop_reading()
        wish = FetchPartitionMessage((TopicPartitionFetch("large", (PartitionFetch(0, 100, 0),)),), APP)
        for _ in range(2000):
            link.send(wish)
    peak = 0
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        peak = max(peak, one.anon_bytes() - before)
        if (await asyncio.to_thread(one.capped)).get("output_stall", 0) >= len(links):
            break
    await scene.capped("output_stall", len(links))
    scene.told["deaf_peak_mib"] = round(peak / MIB, 1)
    # Each may have its limit of answers, one answer more, and what has arrived of its requests.
    if peak > len(links) * (1 + 2 + 1) * MIB + 32 * MIB:
        scene.problems.append(f"consumers that do not read make memory grow by {peak >> 20} MiB")
    for link in links:
        link.go_on_reading()
    await all_closed(links, "consumers that do not read are closed")
    writer.drop()


async def polls(scene: Scene) -> None:
    """More long polls than may wait: those beyond are answered at once, empty."""
    one = scene.broker
    limits = LIMITS["limits"]
    links = [await Link.open(one.port, APP, "empty") for _ in range(3)]
    wish = FetchTopicMessage((TopicFetch("empty", 10),), APP, 0, 30_000)
    for link in links:
        for _ in range(100):
            link.send(wish)
    kept = min(3 * int(limits["parked_polls_per_connection_max"]), int(limits["parked_polls_max"]))
    # The honest client may have one of its own.
    await until(lambda: sum(link.pending_count for link in links) <= kept, "polls beyond the limit are answered")
    await scene.capped("parked_polls_per_connection", 2)
    await scene.capped("parked_polls", 1)
    await asyncio.gather(*[link.ask(Heartbeat()) for link in links])
    scene.told["polls_waiting"] = sum(link.pending_count for link in links)
    if scene.told["polls_waiting"] < kept - 2:
        scene.problems.append(f"{scene.told['polls_waiting']} polls wait; {kept} may")
    drop_all(links)


async def torrent(scene: Scene) -> None:
    """Producers faster than the disk, who do not read one answer: memory keeps to what may wait for a sync."""
    one = scene.broker
    before = one.anon_bytes()
    total = scene.mebibytes
    links = []
    for _ in range(4):
        # Room for all answers: a system that has none left for them drops what comes, our acknowledgements too.
        link = await Link.connect(one.port, receive_bytes=1 << 20)
        await link.ask(introduction(APP))
        await link.ask(AddProducer(("torrent",), APP, 1))
        link.stop_reading()
        links.append(link)
    data = frame_of(_produce(b"t" * (MIB - 200), ACK_WRITE, topic="torrent"), 9, ACK_WRITE)
    try:
        need_strace()
        slow: contextlib.AbstractAsyncContextManager[None] = injected_meanwhile(one.pid, delay("fdatasync", 300, "1+"))
        scene.told["syncs_were_slow"] = True
    except CannotRunError:
        slow = contextlib.nullcontext()
        scene.told["syncs_were_slow"] = False
    sent, peak = 0, 0
    deadline = time.monotonic() + 20 + total / 5
    async with slow:
        while sent < total and time.monotonic() < deadline:
            for link in links:
                if link.unsent_bytes < 2 * MIB and sent < total:
                    link.write(data)
                    sent += 1
            peak = max(peak, one.anon_bytes() - before)
            await asyncio.sleep(0.005)
    scene.told |= {"torrent_mib": sent, "torrent_peak_mib": round(peak / MIB, 1)}
    # What may wait (written and not synced, in flight), and per connection a frame on its way and one before it.
    if peak > (8 + 16 + len(links) * 4 + 32) * MIB:
        scene.problems.append(f"producers faster than the disk make memory grow by {peak >> 20} MiB")
    if sent < total:
        scene.problems.append(f"only {sent} of {total} MiB were taken")
    for link in links:
        link.go_on_reading()
    await until(lambda: all(link.unsent_bytes == 0 for link in links), "all of it is taken", 60)
    await asyncio.gather(*[link.ask(Heartbeat(), seconds=60) for link in links])
    answered = sum(len(link.stray) for link in links)  # we did not say that we wait for them
    if answered != sent:
        scene.problems.append(f"{sent} requests got {answered} answers")
    if await asyncio.to_thread(
        lambda: sum(one.capped().get(name, 0) for name in ("unsynced_bytes", "in_flight_bytes"))
    ):
        scene.told["was_held_back"] = True
    elif scene.told["syncs_were_slow"]:
        scene.problems.append("producers faster than the disk were never held back")
    drop_all(links)
    await until(lambda: one.anon_bytes() - before < 40 * MIB, "the memory of the torrent is free again")


def _produce(body: bytes, level: int, *, topic: str) -> ProduceMessage:
    packed = pack(Message(body=body, partition=0, app=APP))
    return ProduceMessage((TopicProduce(topic, "", 60_000, level, MessageBlock(1, (packed,))),), APP)


# --- all of them -----------------------------------------------------------------------------------------------------

SceneFunction = Callable[[Scene], Awaitable[None]]
SCENES: dict[str, tuple[Sections, tuple[SceneFunction, ...]]] = {
    "idle": ({}, (idle,)),
    "crowd": (LIMITS, (silent, loris, halves, flood, deaf, polls)),
    "torrent": (TORRENT_LIMITS, (torrent,)),
}


def play(name: str, place: Path, connections: int, mebibytes: int) -> tuple[dict[str, Any], list[str]]:
    settings, functions = SCENES[name]
    with broker(place, settings) as one:
        scene = Scene(one, connections, mebibytes)
        for function in functions:
            began = time.monotonic()
            honest = Honest(one.port)
            honest.start()
            try:
                asyncio.run(function(scene))
            except (TimeoutError, CutError, RefusedError, AssertionError) as error:
                scene.problems.append(f"{function.__name__}: {type(error).__name__}: {error}")
            failure = honest.finish()
            if failure is not None:
                scene.problems.append(f"{function.__name__}: {failure}")
            scene.told[f"{function.__name__}_honest_p99_ms"] = honest.percentile_ms(0.99)
            say(
                f"{function.__name__}: {time.monotonic() - began:.1f} s, {honest.rounds} rounds of the honest client, "
                f"p50 {honest.percentile_ms(0.5)} ms, p99 {honest.percentile_ms(0.99)} ms"
            )
            if scene.problems:
                break
        if one.is_running:
            one.stop()
        else:
            scene.problems.append(f"the broker ended by itself: {one.stderr()[-2000:]}")
        if "Traceback (most recent call last)" in one.stderr():
            scene.problems.append(f"a traceback: {one.stderr()[-3000:]}")
    return scene.told, scene.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--mebibytes", type=int, default=200)
    parser.add_argument("--scene", action="append", choices=SCENES, help="only this one")
    options = parser.parse_args()
    started = time.monotonic()
    told: dict[str, Any] = {}
    problems: list[str] = []
    for name in options.scene or SCENES:
        with scratch() as place:
            more, wrong = play(name, place, options.connections, options.mebibytes)
        told |= more
        problems += [f"{name}: {problem}" for problem in wrong]
    return finish({**told, "seconds": round(time.monotonic() - started, 1)}, problems)


if __name__ == "__main__":
    run_command(main)

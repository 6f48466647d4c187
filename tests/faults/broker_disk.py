"""A broker whose disk fails, dawdles, runs full, or whose files run out, while clients are at work.

    python -m tests.faults.broker_disk --rounds 10 [--fault sync-fails …]

sync-fails (F15): a sync returns EIO: who waits gets 91, the broker ends with a status, a restart has what was acked.
sync-slow (F20): 108 for those whose time is over, 101 for those who come later, 0 again when the disk has recovered;
past the limit the broker gives up. disk-full (F18): 109, nothing half stored, reads and acks go on; it heals by itself.
files-out (F26): no more connections, but those that are there are served, and a journal that rolls goes on.
silent-operators (F26): peers that say nothing at the operators' port take neither the store's files nor the health.
no-files-at-all (F26): not one more file can be opened, whatever the limits were; syncs and rolls go on all the same.
no-address-space: no segment can be mapped any more; what is stored is read, and nothing sound is called damaged.
"""

import argparse
import asyncio
import contextlib
import http.client
import os
import resource
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from lakemq.envelope import pack
from lakemq.message import Message
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce
from lakemq.wire.session import Heartbeat

from .broker_account import UNKNOWN, Account
from .broker_kills import SETTINGS
from .broker_link import ACK_FLUSH, ACK_WRITE, CutError, Link, RefusedError
from .broker_load import Load
from .broker_process import FaultBroker, Sections, broker
from .mounts import need_mounts, tmpfs
from .smallfs import fill
from .strace import delay, fail, need_strace
from .tools import CannotRunError, finish, need_tools, run_command, say, scratch, wait_for

WAIT_SECONDS = 60.0
SMALL_BYTES = 48 << 20
FILES_MAX = 256
SOME_BYTES = 64 << 20  # of address space, for threads and requests
HEALTH_SECONDS = 5.0  # that a load balancer waits for an answer
APP = "witness"
_TRIES = 3


@contextlib.contextmanager
def injected(pid: int, *injections: str) -> Iterator[None]:
    """The calls of a process that runs already do as they are told meanwhile."""
    need_strace()
    calls = ",".join(sorted({each.partition(":")[0] for each in injections}))
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={calls}"]
    for each in injections:
        command += ["-e", f"inject={each}"]
    tracer = subprocess.Popen([*command, "-p", str(pid)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: _is_traced(pid) or tracer.poll() is not None, WAIT_SECONDS, "the tracer is there")
        if tracer.poll() is not None and tracer.stderr is not None:
            raise CannotRunError(f"a process cannot be traced: {tracer.stderr.read().decode()}")
        yield
    finally:
        if tracer.poll() is None:
            tracer.terminate()
        tracer.communicate(timeout=WAIT_SECONDS)


@contextlib.asynccontextmanager
async def injected_meanwhile(pid: int, *injections: str) -> AsyncIterator[None]:
    """The same for those whose clients must not stand still while the tracer comes and goes."""
    faults = injected(pid, *injections)
    await asyncio.to_thread(faults.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(faults.__exit__, None, None, None)


def _is_traced(pid: int) -> bool:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return bool(threads) and all("TracerPid:\t0\n" not in (one / "status").read_text() for one in threads)
    except OSError:  # one has ended meanwhile
        return False


async def until(condition: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait while everybody else works on."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds} s still not: {what}")
        await asyncio.sleep(0.005)


def message(body: bytes, partition: int = 0) -> MessageBlock:
    return MessageBlock(1, (pack(Message(body=body, partition=partition, app=APP)),))


async def produce(
    link: Link, body: bytes, level: int = ACK_FLUSH, timeout_ms: int = 20_000, topic: str = "plain"
) -> int:
    """Send one message; the code."""
    command = ProduceMessage((TopicProduce(topic, "", timeout_ms, level, message(body)),), APP)
    ack = await link.ask(command, level, seconds=WAIT_SECONDS)
    return int(ack.topics[0].code)


async def ended(one: FaultBroker, seconds: float) -> int:
    """The exit status of a broker that must end by itself."""
    status = await asyncio.to_thread(one.wait_for_end, seconds)
    if status is None:
        raise TimeoutError(f"the broker has not ended after {seconds} s")
    return status


# --- sync-fails ------------------------------------------------------------------------------------------------------


async def sync_fails(place: Path, rng: Random, account: Account, totals: dict[str, Any]) -> None:
    """EIO from the next sync on."""
    load = Load(rng.randrange(1 << 30), account=account)
    with broker(place, SETTINGS) as one:
        for _ in range(_TRIES):  # the sync that fails may be one that nobody waits for
            load.start(one.port)
            flushed = account.acked_levels["flush"]
            await until(lambda seen=flushed: account.acked_levels["flush"] >= seen + 20, "20 acks")
            await asyncio.sleep(rng.uniform(0, 0.2))
            try:
                async with injected_meanwhile(one.pid, fail("fdatasync", "EIO", "1+")):
                    status = await ended(one, WAIT_SECONDS)
                await load.wait_until_cut()
            finally:
                await load.stop()
            if status == 0:
                account.add("a sync failed, and the broker ended with status 0")
            if "sync failed" not in one.stderr():
                account.add(f"the log does not say that a sync failed: {one.stderr()[-500:]}")
            one.check_stderr()
            one.start()
            await load.check(one.port, is_whole=True)
            if account.codes[91] or account.problems:
                break
        totals["refused_91"] += account.codes[91]
        if not account.codes[91]:
            account.add(f"a sync failed {_TRIES} times and nobody got 91: {dict(account.codes)}")
        one.stop()


# --- sync-slow -------------------------------------------------------------------------------------------------------


async def sync_slow(place: Path, rng: Random, account: Account, totals: dict[str, Any]) -> None:
    """Syncs that take much longer than they may."""
    settings: Sections = {**SETTINGS, "broker": {"slow_sync_ms": 700, "sync_limit_ms": 60_000}}
    load = Load(rng.randrange(1 << 30), account=account)
    with broker(place, settings) as one:
        link = await Link.open(one.port, APP)
        if await produce(link, b"before") != 0:
            account.add("a message before the fault was refused")
        async with injected_meanwhile(one.pid, delay("fdatasync", 4000, "1+")):
            code = await produce(link, b"short of time", timeout_ms=200)
            if code != 108:
                account.add(f"a sync hangs, the time is over, and the code is {code} instead of 108")
            deadline = time.monotonic() + WAIT_SECONDS
            while (code := await produce(link, b"too late", timeout_ms=300)) == 108 and time.monotonic() < deadline:
                pass
            if code != 101:
                account.add(f"a sync hangs for longer than slow_sync_ms, and the code is {code} instead of 101")
            totals["refused_108_101"] += 1
            began = time.monotonic()
            if await produce(link, b"only written", ACK_WRITE) != 0:
                account.add("while a sync hangs, ACK_WRITE is refused")
            await link.ask(Heartbeat())
            totals["answer_while_slow_ms"] = max(
                totals.get("answer_while_slow_ms", 0), round(1000 * (time.monotonic() - began))
            )
        deadline = time.monotonic() + WAIT_SECONDS
        while (code := await produce(link, b"after")) != 0 and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if code != 0:
            account.add(f"the disk has recovered, and the code is {code}")
        load.start(one.port)
        await until(lambda: account.acked_levels["flush"] >= 10, "acks after the fault")
        await load.stop()
        await load.check(one.port, is_whole=True)
        one.check_stderr()
        one.stop()
    await sync_hangs(place / "hangs", account, totals)


async def sync_hangs(place: Path, account: Account, totals: dict[str, Any]) -> None:
    """Longer than any sync may take: the broker gives up."""
    with broker(place, {"broker": {"slow_sync_ms": 300, "sync_limit_ms": 1000}}) as one:
        link = await Link.open(one.port, APP)
        await produce(link, b"kept")
        began = time.monotonic()
        async with injected_meanwhile(one.pid, delay("fdatasync", 3000, "1+")):
            try:
                code: object = await produce(link, b"waits")
            except CutError as error:
                code = error
            if code != 91:
                account.add(f"past sync_limit_ms who waits gets {code} instead of 91")
            totals["gave_up_after_s"] = round(time.monotonic() - began, 2)
            status = await ended(one, WAIT_SECONDS)
            totals["ended_after_s"] = round(time.monotonic() - began, 2)
        if status == 0:
            account.add("the broker gave up with status 0")
        one.check_stderr()
        one.start()
        link = await Link.open(one.port, APP)
        await produce(link, b"served again")
        link.drop()
        one.stop()


# --- disk-full -------------------------------------------------------------------------------------------------------


async def disk_full(place: Path, rng: Random, account: Account, totals: dict[str, Any]) -> None:
    """Not a byte left, then room again, then full and killed."""
    account.unknown_codes = UNKNOWN - {109}  # refused for good: must not be there
    load = Load(rng.randrange(1 << 30), account=account)
    with tmpfs(place / "small", SMALL_BYTES) as root:
        filler = root / "filler"
        with broker(place, SETTINGS, data=root / "data") as one:
            for is_last in (False, True):
                flushed = account.acked_levels["flush"]
                load.start(one.port)
                await until(lambda seen=flushed: account.acked_levels["flush"] > seen + 30, "acks with room")
                fill(filler)
                refused = account.codes[109]
                await until(lambda seen=refused: account.codes[109] > seen + 100, "refusals on a full disk")
                acked, delivered = sum(account.acked.values()), account.delivered
                await until(lambda seen=acked: sum(account.acked.values()) > seen, "an ack on a full disk", 20)
                await until(lambda seen=delivered: account.delivered > seen, "a message read on a full disk", 20)
                if is_last:
                    one.kill()
                    await load.wait_until_cut()
                    break
                filler.unlink()
                flushed = account.acked_levels["flush"]
                await until(lambda seen=flushed: account.acked_levels["flush"] > seen + 30, "acks with room again")
                await load.stop()
                await load.check(one.port, is_whole=True)
            totals["refused_109"] += account.codes[109]
            one.start()
            await load.check(one.port, is_whole=True)
            totals["starts_on_full_disk"] += 1
            filler.unlink()
            link = await Link.open(one.port, APP)
            if await produce(link, b"room again") != 0:
                account.add("there is room again after a restart, and a message is refused")
            link.drop()
            one.check_stderr()
            one.stop()


# --- files-out -------------------------------------------------------------------------------------------------------


async def files_out(place: Path, rng: Random, account: Account, totals: dict[str, Any]) -> None:
    """Connections until there are no files left."""
    load = Load(rng.randrange(1 << 30), account=account)
    few = {"open_segments_max": 8, "open_index_files_max": 16}
    settings: Sections = {**SETTINGS, "storage": {**SETTINGS["storage"], **few}}
    with broker(place, settings, files_max=FILES_MAX) as one:
        load.start(one.port)
        await until(lambda: account.acked_levels["flush"] >= 10, "acks")
        crowd: list[Link] = []
        turned_away = 0
        try:
            while turned_away < 20 and len(crowd) < 2 * FILES_MAX:
                for link in await asyncio.gather(*[_say_hello(one.port) for _ in range(32)]):
                    if link is None:
                        turned_away += 1
                    else:
                        crowd.append(link)
            totals["connections_with_few_files"] = len(crowd)
            if not turned_away:
                account.add(f"{len(crowd)} connections with {FILES_MAX} files, and none is turned away")
            # Segments and index files come and go meanwhile.
            if not await _goes_on(one, account, 2, "no files for connections"):
                return
        finally:
            for link in crowd:
                link.drop()
        deadline = time.monotonic() + WAIT_SECONDS
        while True:  # the crowd is gone: there is room for others
            try:
                (await Link.open(one.port, APP, seconds=2)).drop()
                break
            except (CutError, TimeoutError, RefusedError):
                if time.monotonic() > deadline:
                    account.add("the crowd is gone, and still nobody can connect")
                    break
        await load.stop()
        if account.codes[109]:
            account.add(f"connections took the store's files: 109 came {account.codes[109]} times")
        await load.check(one.port, is_whole=True)
        one.check_stderr()
        one.stop()


# --- silent-operators ------------------------------------------------------------------------------------------------


async def silent_operators(place: Path, rng: Random, account: Account, totals: dict[str, Any]) -> None:
    """More silent connections to the operators' port than there are files; without a token, for none was asked for."""
    load = Load(rng.randrange(1 << 30), account=account)
    few = {"open_segments_max": 8, "open_index_files_max": 16}
    settings: Sections = {**SETTINGS, "storage": {**SETTINGS["storage"], **few}}
    with broker(place, settings, files_max=FILES_MAX) as one, contextlib.ExitStack() as crowd:
        load.start(one.port)
        await until(lambda: account.acked_levels["flush"] >= 10, "acks")
        for number in range(2 * FILES_MAX):
            silent = crowd.enter_context(socket.socket())
            silent.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                silent.connect(("127.0.0.1", one.admin_port))
            if number % 2:  # a head that never ends is silence, too
                with contextlib.suppress(OSError):
                    silent.send(b"GET /healthz HTTP/1.1\r\n")
        slowest = 0.0
        for _ in range(20):  # as a load balancer asks: on a connection of its own, and not for long
            began = time.monotonic()
            status = await asyncio.to_thread(_health, one.admin_port)
            slowest = max(slowest, time.monotonic() - began)
            if status != 200:
                account.add(f"with silent connections at the operators' port /healthz says {status}")
                break
        totals["health_slowest_s"] = round(slowest, 3)
        totals["files_with_silent_operators"] = one.fd_count() if one.is_running else 0
        if not await _goes_on(one, account, 2, "silent connections at the operators' port"):
            return
        await load.stop()
        if account.codes[109]:
            account.add(f"silent connections took the store's files: 109 came {account.codes[109]} times")
        await load.check(one.port, is_whole=True)
        one.check_stderr()
        one.stop()


def _health(port: int) -> int | str:
    """The status that /healthz answers with, or why there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTH_SECONDS)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


# --- no-files-at-all -------------------------------------------------------------------------------------------------


async def no_files_at_all(place: Path, rng: Random, account: Account, totals: dict[str, Any]) -> None:
    """An operator, or another program of this machine, has left nothing: every open is refused from now on."""
    load = Load(rng.randrange(1 << 30), account=account)
    few = {"open_segments_max": 8, "open_index_files_max": 16}
    settings: Sections = {**SETTINGS, "storage": {**SETTINGS["storage"], **few}}
    with broker(place, settings) as one:
        load.start(one.port)
        await until(lambda: account.acked_levels["flush"] >= 200 and _newest_segment(one) >= 4, "some segments")
        limits = resource.prlimit(one.pid, resource.RLIMIT_NOFILE)
        numbers = {int(name) for name in os.listdir(f"/proc/{one.pid}/fd")}
        least = next(number for number in range(len(numbers) + 1) if number not in numbers)
        resource.prlimit(one.pid, resource.RLIMIT_NOFILE, (least, limits[1]))
        segments = _newest_segment(one)
        if not await _goes_on(one, account, 3, "no file to be had"):
            return
        resource.prlimit(one.pid, resource.RLIMIT_NOFILE, limits)
        totals["rolls_without_files"] = _newest_segment(one) - segments
        await load.stop()
        await load.check(one.port, is_whole=True)
        one.check_stderr()
        one.stop()


# --- no-address-space ------------------------------------------------------------------------------------------------


async def no_address_space(place: Path, rng: Random, account: Account, totals: dict[str, Any]) -> None:
    """A limit of the process' address space that leaves no room to map a segment."""
    load = Load(rng.randrange(1 << 30), account=account)
    settings: Sections = {"storage": {"segment_bytes": "256MiB"}}
    with broker(place, settings) as one:
        load.start(one.port)
        await until(lambda: account.acked_levels["flush"] >= 100, "acks")
        await load.stop()
        one.restart()  # nothing is mapped yet
        limits = resource.prlimit(one.pid, resource.RLIMIT_AS)
        resource.prlimit(one.pid, resource.RLIMIT_AS, (one.address_bytes() + SOME_BYTES, limits[1]))
        await load.check(one.port, is_whole=True)
        totals["mapped_without_room"] = one.mapped_segments()
        if account.codes[110]:
            account.add(f"for want of address space 110 came {account.codes[110]} times: nothing is damaged")
        resource.prlimit(one.pid, resource.RLIMIT_AS, limits)
        await load.check(one.port, is_whole=True)
        totals["mapped_with_room"] = one.mapped_segments()
        one.check_stderr()
        one.stop()


async def _goes_on(one: FaultBroker, account: Account, rolls: int, beside: str) -> bool:
    """Messages are synced and the journal rolls; False if the broker has ended instead."""
    segments, flushed = _newest_segment(one), account.acked_levels["flush"]
    await until(
        lambda: (
            (account.acked_levels["flush"] > flushed + 200 and _newest_segment(one) >= segments + rolls)
            or not one.is_running
        ),
        f"{rolls} rolls of the journal beside {beside}",
    )
    if not one.is_running:
        account.add(f"{beside}: the broker ended: {one.stderr()[-700:]}")
    return bool(one.is_running)


async def _say_hello(port: int) -> Link | None:
    """A connection that is served; None if there is none to be had."""
    try:
        link = await Link.connect(port, seconds=5)
        await link.ask(Heartbeat(), seconds=5)
    except (CutError, TimeoutError):
        return None
    return link


def _newest_segment(one: FaultBroker) -> int:
    return len(list((one.data / "journal").iterdir()))


Fault = Callable[[Path, Random, Account, dict[str, Any]], Awaitable[None]]
FAULTS: dict[str, Fault] = {
    "sync-fails": sync_fails,
    "sync-slow": sync_slow,
    "disk-full": disk_full,
    "files-out": files_out,
    "silent-operators": silent_operators,
    "no-files-at-all": no_files_at_all,
    "no-address-space": no_address_space,
}
NEEDS: dict[str, Callable[[], None]] = {
    "sync-fails": need_strace,
    "sync-slow": need_strace,
    "disk-full": need_mounts,
    "files-out": lambda: need_tools("prlimit"),
    "silent-operators": lambda: need_tools("prlimit"),
    "no-files-at-all": lambda: None,
    "no-address-space": lambda: None,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this one")
    options = parser.parse_args()
    started, rng = time.monotonic(), Random(options.seed)
    totals: dict[str, Any] = dict.fromkeys(
        ("acked", "lost", "refused_91", "refused_108_101", "refused_109", "starts_on_full_disk"), 0
    )
    totals |= {"rounds": {}, "could_not_run": {}}
    problems: list[str] = []
    for name in options.fault or FAULTS:
        try:
            NEEDS[name]()
        except CannotRunError as error:
            if options.fault:
                raise
            totals["could_not_run"][name] = str(error)
            continue
        for number in range(1, options.rounds + 1):
            account = Account()
            with scratch() as place:
                try:
                    asyncio.run(FAULTS[name](place, rng, account, totals))
                except CannotRunError:
                    raise
                except Exception as error:
                    account.add(f"{type(error).__name__}: {error}; codes {dict(account.codes)}")
            totals["acked"] += sum(account.acked_levels.values())
            totals["lost"] += account.lost
            totals["rounds"][name] = number
            problems += [f"{name}, round {number}: {problem}" for problem in account.problems]
            say(f"{name}, round {number}: {dict(account.acked_levels)} acked, codes {dict(account.codes)}")
            if problems:
                break
    return finish({**totals, "seconds": round(time.monotonic() - started, 1)}, problems)


if __name__ == "__main__":
    run_command(main)

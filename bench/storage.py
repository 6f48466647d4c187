"""The storage engine against the disk it runs on: append, read, look up, recover, many partitions.

    python bench/storage.py [--quick] [--json] [--directory DIR]

The full form makes a journal of 10 GB and 10 million messages and takes some minutes; what it made is removed.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lakemq import envelope
from lakemq.message import Message
from lakemq.storage.config import StorageConfig
from lakemq.storage.partition_group import PartitionGroup
from lakemq.storage.recovery import open_group
from lakemq.world.disk import RealDisk

from measure import Result, report

COUNT = 100
MESSAGE_BYTES = 1024
SYNC_EVERY = 40  # appends, so about 4 MB
BLOCK_BYTES = 1 << 20


def block_of(count: int, message_bytes: int = MESSAGE_BYTES) -> bytearray:
    empty = len(envelope.pack(Message(business_id="order-1234", attributes={"TAGS": "paid"}, app="shop")))
    message = Message(
        body=b"7" * (message_bytes - empty),
        business_id="order-1234",
        attributes={"TAGS": "paid"},
        app="shop",
        send_time_ms=1_700_000_000_000,
    )
    return bytearray(envelope.pack(message) * count)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def sync(group: PartitionGroup) -> None:
    ticket = group.begin_sync()
    if ticket is not None:
        ticket.run()
        group.end_sync(ticket)


def checkpoint(group: PartitionGroup) -> None:
    ticket = group.begin_checkpoint()
    ticket.run()
    group.end_checkpoint(ticket)


def fill(
    group: PartitionGroup, appends: int, block: bytearray, sync_every: int = SYNC_EVERY, topic: int = 1
) -> list[float]:
    """Append `appends` blocks; returns the seconds each tenth of them took."""
    tenths, start = [], time.perf_counter()
    count = len(block) // MESSAGE_BYTES
    for n in range(1, appends + 1):
        group.append(topic, 0, block, count, count, term=1, now_ms=1_700_000_000_000 + n)
        group.flush()
        if sync_every and n % sync_every == 0:
            sync(group)
        elif not sync_every and group.journal.unsynced_bytes > 32 << 20:
            pretend_sync(group)
        if n % max(appends // 10, 1) == 0:
            tenths.append(time.perf_counter() - start)
            start = time.perf_counter()
    return tenths


def pretend_sync(group: PartitionGroup) -> None:
    """For the run that compares without a disk's waits: the ticket is not run."""
    ticket = group.begin_sync()
    if ticket is not None:
        group.end_sync(ticket)


def bench_append(directory: Path, appends: int, rounds: int) -> list[Result]:
    program = directory / "append_baseline"
    source = Path(__file__).with_name("append_baseline.c")
    subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
    segment_bytes = 256 << 20
    block = block_of(COUNT)
    results = []
    for every, name in ((SYNC_EVERY, "synced every 4 MB"), (0, "page cache only")):
        ours, theirs = [], []
        for turn in range(rounds):  # alternate: the disk is shared and changes its mind
            base = directory / f"base-{every}-{turn}"
            arguments = [str(program), str(base), str(appends), str(len(block)), str(every), str(segment_bytes)]
            done = subprocess.run(arguments, check=True, capture_output=True, text=True)
            theirs.append(float(done.stdout))
            for path in directory.glob(base.name + "*"):
                path.unlink()
            root = directory / f"ours-{every}-{turn}"
            root.mkdir()
            config = StorageConfig(segment_bytes=segment_bytes, checkpoint_bytes=1 << 60)
            group = open_group(RealDisk(root), config)
            start = time.perf_counter()
            fill(group, appends, block, every)
            ours.append(time.perf_counter() - start)
            group.abandon()
            shutil.rmtree(root)
        # Pairs were run one after the other: the median pair says more than the best of each.
        ratio = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
        value, base_value = appends * COUNT / min(ours), appends * COUNT / min(theirs)
        results.append(
            Result(
                f"append 1 KB x 100, {name}",
                round(value),
                "messages/s",
                round(base_value),
                round(ratio, 3),
                "at least 0.6 of C" if every else "",  # never to sync is no policy of ours: for scale only
                ratio >= 0.6 if every else None,
            )
        )
    return results


def bench_read(directory: Path, appends: int) -> list[Result]:
    root = directory / "read"
    root.mkdir()
    config = StorageConfig(segment_bytes=1 << 30)
    group = open_group(RealDisk(root), config)
    fill(group, appends, block_of(COUNT))
    sync(group)
    segments = sorted((root / "journal").iterdir())

    def through_index() -> float:
        start, index, end = time.perf_counter(), 0, group.visible_index(1, 0)
        while index < end:
            index = group.read(1, 0, index, 1 << 30, BLOCK_BYTES)[-1].next_index
        return time.perf_counter() - start

    def plain() -> float:
        start, left = time.perf_counter(), group.journal.written_position
        for segment in segments:
            descriptor = os.open(segment, os.O_RDONLY)
            at = 0
            while left > 0 and (data := os.pread(descriptor, min(BLOCK_BYTES, left), at)):
                at += len(data)
                left -= len(data)
            os.close(descriptor)
        return time.perf_counter() - start

    pairs = [(through_index(), plain()) for _ in range(5)]
    size_mb = group.journal.written_position / 1e6
    ratio = statistics.median(base / ours for ours, base in pairs)
    ours, base = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    results = [
        Result(
            "sequential read through the index, 1 MB a fetch",
            round(size_mb / ours),
            "MB/s",
            round(size_mb / base),
            round(ratio, 3),
            "at least 0.5 of pread",
            ratio >= 0.5,
        )
    ]
    rng, end = random.Random(1), group.visible_index(1, 0)
    wanted = [rng.randrange(end) for _ in range(2000)]
    found = group._indexes.get((1, 0))
    assert found is not None
    times = []
    for index in wanted:
        start = time.perf_counter_ns()
        found.find(index)
        times.append(time.perf_counter_ns() - start)
    value = statistics.median(times) / 1000
    results.append(
        Result(f"look up a random index among {end:,}", round(value, 1), "µs", aim="at most 30 µs", met=value <= 30)
    )
    results.append(bench_single_reads(directory / "single", config))
    group.abandon()
    shutil.rmtree(root)
    return results


def bench_single_reads(root: Path, config: StorageConfig) -> Result:
    """The worst case for reading: every message came in a request of its own."""
    root.mkdir()
    group = open_group(RealDisk(root), config)
    blocks = [block_of(1) for _ in range(100)]
    for n in range(20_000):
        group.append(1, 0, blocks[n % 100], 1, 1, term=1, now_ms=n)
        if n % 100 == 99:
            group.flush()
    sync(group)
    start, index = time.perf_counter(), 0
    while index < 20_000:
        index = group.read(1, 0, index, 1 << 30, BLOCK_BYTES)[-1].next_index
    seconds = time.perf_counter() - start
    group.abandon()
    shutil.rmtree(root)
    return Result("sequential read, one 1 KB message a record", round(20.48 / seconds), "MB/s")


def bench_flat(directory: Path, messages: int) -> list[Result]:
    """Cost of an append as the journal grows: messages of 200 bytes, CPU time, so that the disk does not speak.

    The aim is about the first and the last tenth. On a shared machine those also differ by what the neighbours did, so
    at the end the full store and an empty one take turns, beside it and for scale.
    """
    config = StorageConfig(segment_bytes=256 << 20, checkpoint_bytes=64 << 20)
    groups = {}
    for name in ("full", "empty"):
        (directory / name).mkdir()
        groups[name] = open_group(RealDisk(directory / name), config)
    block = block_of(COUNT, 200)
    tenths = []
    for tenth in range(10):
        tenths.append(append_cost(groups["full"], block, messages // COUNT // 10))
        say(f"  {(tenth + 1) * messages // 10:,} messages: {tenths[-1]:.1f} µs of CPU an append of {COUNT}")
    costs: dict[str, list[float]] = {"full": [], "empty": []}
    for turn in range(60):
        for name in sorted(groups, reverse=bool(turn % 2)):
            costs[name].append(append_cost(groups[name], block, 100))
    for name, group in groups.items():
        group.abandon()
        shutil.rmtree(directory / name)
    full, empty = statistics.median(costs["full"]), statistics.median(costs["empty"])
    ratio = tenths[-1] / tenths[0]
    return [
        Result(
            f"append, last tenth of {messages:,} messages against the first",
            round(tenths[-1], 1),
            "µs/append",
            round(tenths[0], 1),
            round(ratio, 3),
            "within 10 %",
            ratio <= 1.1,
        ),
        Result(
            f"append behind {messages:,} messages against an empty store, in turns",
            round(full, 1),
            "µs/append",
            round(empty, 1),
            round(full / empty, 3),
        ),
    ]


def append_cost(group: PartitionGroup, block: bytearray, appends: int) -> float:
    """Microseconds of CPU an append, syncs left out; they are real, or the kernel would make the writer pay later."""
    start = time.thread_time()
    for n in range(appends):
        group.append(1, 0, block, COUNT, COUNT, term=1, now_ms=n)
        group.flush()
        if group.journal.unsynced_bytes > 16 << 20:
            spent = time.thread_time()
            sync(group)
            start += time.thread_time() - spent
    return (time.thread_time() - start) / appends * 1e6


def bench_recovery(directory: Path, size_bytes: int) -> list[Result]:
    root = directory / "recovery"
    root.mkdir()
    config = StorageConfig()
    child = os.fork()
    if child == 0:
        write_and_die(root, config, size_bytes)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the writer must end by kill -9"
    ends = {(topic, partition): end for topic, partition, end in json.loads((directory / "ends").read_text())}

    def opened() -> float:
        start = time.perf_counter()
        again = open_group(RealDisk(root), config)
        seconds = time.perf_counter() - start
        assert {key: again.visible_index(*key) for key in again.partitions()} == ends
        again.abandon()
        return seconds

    size = f"{size_bytes / 1e9:.1f} GB"
    with_checkpoint = opened()
    say(f"  opened {size} with a checkpoint in {with_checkpoint:.2f} s")
    for name in ("checkpoint", "checkpoint.old"):
        (root / name).unlink(missing_ok=True)
    shutil.rmtree(root / "index")
    (root / "index").mkdir()
    rebuilding = opened()
    shutil.rmtree(root)
    return [
        Result(f"open {size} after kill -9", round(with_checkpoint, 2), "s", aim="under 5 s", met=with_checkpoint < 5),
        Result(
            f"open {size}, every index made again", round(rebuilding, 2), "s", aim="under 60 s", met=rebuilding < 60
        ),
    ]


def write_and_die(root: Path, config: StorageConfig, size_bytes: int) -> None:
    """In a process of its own: fill a store, note how far each partition came, and be killed in mid-life."""
    try:
        group = open_group(RealDisk(root), config)
        block = block_of(COUNT)
        appends = size_bytes // len(block)
        for n in range(appends):
            group.append(n % 4, n % 8, block, COUNT, COUNT, term=1, now_ms=n)
            group.flush()
            if n % 200 == 0:
                sync(group)
                if group.wants_checkpoint:
                    checkpoint(group)
            if n % max(appends // 10, 1) == 0:
                say(f"  wrote {n * len(block) / 1e9:.1f} of {size_bytes / 1e9:.1f} GB")
        sync(group)
        ends = [(*key, group.visible_index(*key)) for key in group.partitions()]
        (root.parent / "ends").write_text(json.dumps(ends))
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)  # only if something went wrong: the parent must not be run a second time


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def bench_partitions(directory: Path, partitions: int) -> list[Result]:
    root = directory / "partitions"
    root.mkdir()
    config = StorageConfig()
    group = open_group(RealDisk(root), config)
    block = block_of(1)
    for n in range(partitions):
        group.append(n // 100, n % 100, block, 1, 1, term=1, now_ms=n)
        if n % 100 == 99:
            group.flush()
            sync(group)
    group.close()
    # A process of its own, so that memory is not what the filling left.
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[2])\n"
        "from storage import rss_bytes\n"
        "from lakemq.storage.recovery import open_group\n"
        "from lakemq.world.disk import RealDisk\n"
        "before = rss_bytes(); start = time.perf_counter()\n"
        "group = open_group(RealDisk(sys.argv[1]))\n"
        "print(time.perf_counter() - start, rss_bytes() - before, len(group.partitions()))\n"
    )
    arguments = [sys.executable, "-c", script, str(root), str(Path(__file__).parent)]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    seconds, memory, found = (float(word) for word in done.stdout.split())
    assert found == partitions
    shutil.rmtree(root)
    each = memory / partitions / 1024
    return [
        Result(f"start with {partitions:,} partitions", round(seconds, 2), "s", aim="under 10 s", met=seconds < 10),
        Result("memory of an idle partition", round(each, 2), "KB", aim="at most 20 KB", met=each <= 20),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--directory", help="where to work; it needs 25 GB in the full form (default: a temporary one)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="lakemq-bench-", dir=options.directory))
    try:
        say("append")
        results = bench_append(directory, 800 if options.quick else 8000, 3 if options.quick else 5)
        say("read")
        results += bench_read(directory, 2000 if options.quick else 20_000)
        say("flat")
        results += bench_flat(directory, 500_000 if options.quick else 10_000_000)
        say("recovery")
        results += bench_recovery(directory, 500_000_000 if options.quick else 10_000_000_000)
        say("partitions")
        results += bench_partitions(directory, 1000 if options.quick else 10_000)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report(results, options.json)


if __name__ == "__main__":
    main()

"""What the events of an archived topic cost its producers: the same load on one broker, archived and not, in turns.

    python bench/events.py [--quick] [--json] [--cases a,b,c,d] [--rounds N] [--seconds S] [--directory DIR]

The cases are those of `bench/broker.py` with ACK_WRITE, measured twice. Over sockets its load program makes the load;
one broker serves all of it, and before each run its topic is set to be archived, or not to be. The machine's speed
changes within seconds: many short pairs of runs tell more than few long ones. In the core the same frames are handed to
a broker in this process, turn by turn, and its CPU time is taken: without the kernel's share, so the ratio is less
kind, and with short runs in close turns, so that others on the machine weigh less.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from broker import (
    BATCH_COUNT,
    DATA_BYTES_MAX,
    PARTITIONS,
    TOPIC,
    Bench,
    Case,
    Run,
    Server,
    cases_named,
    check_produce,
    compile_programs,
    frame_of,
    new_directory,
    say,
    setup_of,
    start_broker,
)
from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import TurnEnded
from lakemq.client.admin import AdminClient
from lakemq.embedded import Engine, Pipe
from lakemq.world.clock import RealClock
from lakemq.world.disk import RealDisk
from page_cache import PageCache

from measure import Result, report

RATIO_MIN = 0.95


def admin_of(server: Server) -> AdminClient:
    """Whoever may set topics."""
    said = json.loads((server.directory / "ready.json").read_text())
    return AdminClient(f"http://127.0.0.1:{said['admin_port']}", said["admin_token"])


def archive(server: Server, is_archived: bool) -> None:
    admin_of(server).call("PUT", f"topics/{TOPIC}", {"is_archived": is_archived})


def begin(directory: Path) -> Server:
    server = start_broker(directory)
    check_produce(server)  # which makes the topic
    return server


def measure(bench: Bench, case: Case) -> tuple[list[Run], list[Run]]:
    """Runs without and with events, in pairs."""
    plain: list[Run] = []
    traced: list[Run] = []
    for turn in range(bench.rounds):
        assert bench.ours is not None
        if bench.ours.data_bytes() > DATA_BYTES_MAX:
            bench.ours.stop()
            bench.ours = begin(bench.directory)
        for is_archived in (False, True) if turn % 2 else (True, False):
            archive(bench.ours, is_archived)
            (traced if is_archived else plain).append(bench._run(case, bench.ours))
        say(f"{case.name} {turn + 1}/{bench.rounds}: {traced[-1].cpu_us / plain[-1].cpu_us:.3f} of the CPU\n")
    return plain, traced


class InCore:
    """A broker in this process, and requests for it that look like those of the load program."""

    def __init__(self, directory: Path, case: Case) -> None:
        config = BrokerConfig(creates_missing=True, partitions_default=PARTITIONS)
        self.engine = Engine(RealDisk(str(new_directory(directory, "core"))), RealClock(), config)
        self.pipes = [self.engine.connect() for _ in range(case.connections)]
        frame = frame_of(case)
        for pipe in self.pipes:
            self._feed(pipe, setup_of(case))
            self._feed(pipe, frame)
        self.requests = [frame * case.window] * case.connections
        route = self.pipes[0].session.route
        if case.kind == "single":  # others name their partition in each message
            place = route.partition_offset
            self.requests = [
                (frame[:place] + (number % PARTITIONS).to_bytes(2, "big") + frame[place + 2 :]) * case.window
                for number in range(case.connections)
            ]
        self.count = case.connections * case.window * (BATCH_COUNT if case.kind in ("array", "batch") else 1)

    def _feed(self, pipe: Pipe, data: bytes) -> None:
        pipe.feed(data)
        self.engine.settle()
        pipe.take()

    def archive(self, is_archived: bool) -> None:
        self.engine.ask("set_topic", name=TOPIC, is_archived=is_archived)
        for _ in range(2):  # what follows is like the one before it
            for pipe, data in zip(self.pipes, self.requests, strict=True):
                self._feed(pipe, data)

    def run(self, turns: int) -> float:
        """Nanoseconds of CPU per message."""
        broker, spent = self.engine.broker, 0
        for _ in range(turns):
            arrivals = [
                (pipe.session, memoryview(bytearray(data)))
                for pipe, data in zip(self.pipes, self.requests, strict=True)
            ]
            began = time.thread_time_ns()
            broker.receive_all(arrivals, self.engine.now())
            broker.handle(TurnEnded(), self.engine.now())
            spent += time.thread_time_ns() - began
            for pipe in self.pipes:
                pipe.sent.clear()
            while self.engine.tickets:
                self.engine.run_ticket()
        return spent / turns / self.count


def in_core(directory: Path, case: Case, rounds: int, turns: int) -> Result:
    """The same without sockets."""
    core = InCore(directory, case)
    found: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(rounds):
        for is_archived in (False, True) if turn % 2 else (True, False):
            core.archive(is_archived)
            found[is_archived].append(core.run(turns))
    core.engine.close()
    plain, traced = statistics.median(found[False]), statistics.median(found[True])
    ratio = statistics.median(a / b for a, b in zip(found[True], found[False], strict=True))
    return Result(f"{case.name}, archived, in the core", traced, "ns of CPU", plain, ratio, "≤ 1.05", ratio <= 1.05)


def results_of(case: Case, plain: list[Run], traced: list[Run]) -> list[Result]:
    def median(runs: list[Run], name: str) -> float:
        return statistics.median(getattr(run, name) for run in runs)

    found = []
    for name, unit, is_more_better in (("messages_s", "messages/s", True), ("cpu_us", "us of CPU", False)):
        value, baseline = median(traced, name), median(plain, name)
        ratio = statistics.median(getattr(a, name) / getattr(b, name) for a, b in zip(traced, plain, strict=True))
        is_met = ratio >= RATIO_MIN if is_more_better else ratio <= 1 / RATIO_MIN
        aim = f"≥ {RATIO_MIN}" if is_more_better else f"≤ {1 / RATIO_MIN:.2f}"
        found.append(Result(f"{case.name}, archived, {name}", value, unit, baseline, ratio, aim, is_met))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--cases", default="a-write,b-write,c-write", help="as of bench/broker.py")
    parser.add_argument("--rounds", type=int, help="of each case")
    parser.add_argument("--seconds", type=float, help="measured in each run")
    parser.add_argument("--directory", default=".", help="on the disk to work on")
    options = parser.parse_args()
    rounds, seconds = options.rounds or (4 if options.quick else 40), options.seconds or 0.5
    results = []
    with tempfile.TemporaryDirectory(prefix="events-", dir=options.directory) as name:
        directory = Path(name)
        compile_programs(directory)
        memory = None if options.quick else PageCache(directory, say)
        bench = Bench(directory, seconds, seconds / 4, rounds, 0, memory)
        bench.ours = begin(directory)
        try:
            for case in cases_named(options.cases):
                turns = max(6000 // (case.connections * case.window * (1 if case.kind == "single" else BATCH_COUNT)), 8)
                results.append(in_core(directory, case, 15 if options.quick else 60, turns))
                results += results_of(case, *measure(bench, case))
        finally:
            bench.stop()
            if memory is not None:
                memory.close()
    report(results, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

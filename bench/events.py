"""What the events of an archived topic cost its producers: the same load on one broker, archived and not, in turns.

    python bench/events.py [--quick] [--json] [--cases a,b,c,d] [--rounds N] [--seconds S] [--directory DIR]

The cases are those of `bench/broker.py` with ACK_WRITE, and its load program makes the load. One broker serves all of
it; before each run its topic is set to be archived, or not to be. Read the ratio of the CPU per message: it moves less
than the throughput, which others on the machine take their share of.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from broker import (
    DATA_BYTES_MAX,
    TOPIC,
    Bench,
    Case,
    Run,
    Server,
    cases_named,
    check_produce,
    compile_programs,
    say,
    start_broker,
)
from lakemq.client.admin import AdminClient

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
    rounds, seconds = options.rounds or (2 if options.quick else 7), options.seconds or (1.0 if options.quick else 2.0)
    results = []
    with tempfile.TemporaryDirectory(prefix="events-", dir=options.directory) as name:
        directory = Path(name)
        compile_programs(directory)
        bench = Bench(directory, seconds, seconds / 4, rounds, 0)
        bench.ours = begin(directory)
        try:
            for case in cases_named(options.cases):
                results += results_of(case, *measure(bench, case))
        finally:
            bench.stop()
    report(results, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What every benchmark here shares: the flags, timing in the same run, and how results are printed.

Each `bench/NAME.py` takes `--quick` (under a minute) and `--json`, prints one object per result with name, value,
unit, baseline, ratio, aim and met, and exits 0 if it could measure, whatever came out.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass
class Result:
    """One figure. `ratio` is value / baseline, `aim` is in words, `met` is None where there is no aim."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    aim: str = ""
    met: bool | None = None


def arguments(about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    return parser.parse_args()


def best_ns(function: Callable[[], object], repeat: int, rounds: int = 7) -> float:
    """Nanoseconds of CPU per call: the best round, because the machine is shared and only ever slows us down."""
    times = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        for _ in range(repeat):
            function()
        times.append((time.thread_time_ns() - start) / repeat)
    return min(times)


def median_ns(function: Callable[[], object], repeat: int, rounds: int = 7) -> float:
    return statistics.median(best_ns(function, repeat, 1) for _ in range(rounds))


def report(results: list[Result], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    width = max(len(result.name) for result in results)
    for result in results:
        line = f"{result.name:<{width}}  {result.value:>12,.4g} {result.unit:<12}"
        if result.baseline is not None:
            line += f" baseline {result.baseline:,.4g}, ratio {result.ratio:.3g}"
        if result.aim:
            line += f"  aim: {result.aim} — {'met' if result.met else 'NOT met'}"
        print(line)

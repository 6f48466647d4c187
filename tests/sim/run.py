"""Simulated schedules, many of them, or one again.

    python -m tests.sim.run --seeds 10000 --jobs 2
    python -m tests.sim.run --seed 1234 -v

A seed that breaks a promise is told with what it takes to see it again. The summary says what happened in all of them,
so that one sees that it was not nothing.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from lakemq.testing.actor import Client
from lakemq.testing.simulation import Simulation

BLOCK_SEEDS = 20
VIOLATIONS_SHOWN = 20
LATENESS = ("<= 0 ms", "<= 20 ms", "<= 50 ms", "<= 100 ms", "<= 500 ms", "<= 1000 ms", "> 1000 ms")
PROGRESS_S = 5.0


@dataclass
class Outcome:
    """What some seeds came to."""

    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    digests: dict[int, int] = field(default_factory=dict)

    def add(self, other: "Outcome") -> None:
        """These too."""
        self.seeds += other.seeds
        self.counts += other.counts
        self.failures += other.failures
        self.digests |= other.digests


def run_seed(seed: int) -> Outcome:
    """One schedule. Whatever goes wrong is its failure: a promise broken, or an exception that nobody wanted."""
    simulation = Simulation(seed)
    outcome = Outcome(seeds=1)
    try:
        simulation.run()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if type(error).__name__ == "ViolationError" else f" at {last.filename}:{last.lineno}"
        outcome.failures.append((seed, f"{type(error).__name__}: {error}{where}"))
    outcome.counts = simulation.counts
    outcome.counts["events"] += simulation.event_count
    outcome.digests[seed] = simulation.digest
    return outcome


def run_block(first: int, count: int) -> Outcome:
    """So many schedules from that seed on."""
    outcome = Outcome()
    for seed in range(first, first + count):
        outcome.add(run_seed(seed))
    return outcome


def run_many(first: int, count: int, jobs: int) -> Iterator[Outcome]:
    """Blocks of schedules, as they are done."""
    blocks = [(at, min(BLOCK_SEEDS, first + count - at)) for at in range(first, first + count, BLOCK_SEEDS)]
    if jobs < 2:
        for block in blocks:
            yield run_block(*block)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run_block, *block) for block in blocks]):
            yield done.result()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def summary(outcome: Outcome) -> Iterator[str]:
    """What happened, in lines."""
    counts = outcome.counts
    asked = sum(count for name, count in counts.items() if name.startswith("asked "))
    yield f"{asked} requests, {counts['answers']} answers, {counts['events']} events"
    sent = ", ".join(f"{counts[f'sent {level}']} {level}" for level in ("flush", "write", "receive", "no"))
    ends = ", ".join(f"{counts[f'send {end}']} {end}" for end in ("ok", "unknown", "failed", "cut off"))
    yield f"sends: {sent}; {ends}"
    yield f"{counts['messages']} messages kept, {counts['delivered']} delivered, {counts['ack ok']} acks taken"
    names = ("starts", "died by kill", "died by power", "died in recovery", "failed", "stopped", "refused turns")
    yield ", ".join(f"{counts[name]} {name}" for name in names)
    yield f"{counts['syncs']} syncs, {counts['checkpoints']} checkpoints, {counts['index told']} looks at ack indexes"
    names = ("said failed", "said dead", "retries delivered", "dead letters", "stuck", "transactions", "delays")
    yield ", ".join(f"{counts[name]} {name}" for name in names)
    for kind in ("retry late ", "delay late "):
        yield kind.strip() + ": " + ", ".join(f"{counts[kind + one]} {one}" for one in LATENESS)
    faults = [f"{name[6:]} {count}" for name, count in sorted(counts.items()) if name.startswith("fault ")]
    yield "faults: " + ", ".join(faults)
    codes = [f"{name[5:]} {count}" for name, count in sorted(counts.items()) if name.startswith("code ")]
    yield "codes of sends: " + ", ".join(codes)


def watch(seed: int) -> int:
    """One seed again, with everything that is asked in it."""
    simulation = Simulation(seed, say)
    plan = simulation.plan
    say(f"{plan.broker}\n{plan.storage}")
    clients = (*plan.producers, *plan.transactors, *plan.consumers, *plan.observers)
    for one in (*plan.topics, plan.policies, *clients, *plan.planned):
        say(str(one))
    ask = Client.ask

    def told(self, command, *rest, **more):  # type: ignore[no-untyped-def]
        simulation.say(f"{self.name} over {self.connection}: {str(command)[:240]}")
        return ask(self, command, *rest, **more)

    Client.ask = told  # type: ignore[method-assign]
    try:
        simulation.run()
    finally:
        Client.ask = ask  # type: ignore[method-assign]
        say(f"digest {simulation.digest:08x} after {simulation.event_count} events")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: tell all that happens")
    parser.add_argument("--digests", action="store_true", help="only a digest of each seed's events, to compare runs")
    options = parser.parse_args()
    if options.seed is not None and options.verbose:
        return watch(options.seed)
    if options.seed is not None:
        options.first, options.seeds, options.jobs = options.seed, 1, 1
    outcome, began, told = Outcome(), time.monotonic(), time.monotonic()
    for done in run_many(options.first, options.seeds, options.jobs):
        outcome.add(done)
        for seed, text in done.failures[:VIOLATIONS_SHOWN]:
            say(f"seed {seed}: {text[:700]}")
        if time.monotonic() > told + PROGRESS_S and not options.digests:
            told = time.monotonic()
            rate = outcome.seeds / (told - began)
            say(f"{outcome.seeds} of {options.seeds} schedules, {rate:.1f} a second, {len(outcome.failures)} failed")
    if options.digests:
        for seed, digest in sorted(outcome.digests.items()):
            say(f"{seed} {digest:08x}")
        return 0
    for line in summary(outcome):
        say(line)
    spent = time.monotonic() - began
    say(f"{outcome.seeds} schedules in {spent:.0f} s, {outcome.seeds / spent:.1f} a second")
    for seed, _ in sorted(outcome.failures):
        say(f"VIOLATION, to see it: python -m tests.sim.run --seed {seed} -v")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())

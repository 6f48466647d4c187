"""LakeMQ and its peers, side by side.

    python -m peers.run [--quick] [--peers kafka,redis] [--workloads unbatched,...] [--rounds N] [--seconds S]
                          [--cores free|split] [--no-growth] [--directory DIR] [--output DIR]

Every round takes the peers in another order; each gets a new server, a warm-up, and all workloads; a ratio is the
median of the rounds' ratios. Results go to `bench/results/`: JSON, a table and plots. `--quick` takes five minutes and
only the peers that are installed; otherwise what is missing is installed first, by package name.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from page_cache import PageCache
from peers import growth, plots, tables
from peers.all import PEERS, peers_named
from peers.model import Durability, Peer, PeerError, say
from peers.records import Records, machine
from peers.turns import Pace, turn
from peers.workloads import WORKLOADS, Workload

ROUNDS = 5
WARM_UP_MAX = 15.0  # seconds; most need a fraction
QUICK_ROUNDS = 3
MINUTES_MAX = 45
QUICK_MINUTES_MAX = 5
RESULTS = Path(__file__).parent.parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five minutes, the installed peers only")
    parser.add_argument("--peers", default="", help=f"of {', '.join(PEERS)}; LakeMQ is always there")
    parser.add_argument("--workloads", default="", help=f"of {', '.join(one.name for one in WORKLOADS)}")
    parser.add_argument("--rounds", type=int, default=0, help=f"{ROUNDS}, quick {QUICK_ROUNDS}")
    parser.add_argument("--seconds", type=float, default=0, help="measured each time; 1")
    parser.add_argument("--cores", choices=("free", "split"), default="free", help="split: the load has one of its own")
    parser.add_argument("--no-growth", action="store_true", help="leave out the curves and the large backlogs")
    parser.add_argument("--minutes", type=float, default=0, help="start no round that would not end by then")
    parser.add_argument("--directory", type=Path, default=Path("."), help="on the disk to work on")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where results go")
    return parser.parse_args()


def pace_of(options: argparse.Namespace, memory: PageCache | None) -> Pace:
    cpus = sorted(os.sched_getaffinity(0))
    load, servers = (cpus[-1:], cpus[:-1] or cpus) if options.cores == "split" else (cpus, cpus)
    seconds = options.seconds or 1.0
    return Pace(seconds, 0.3, WARM_UP_MAX, load, servers, memory)


def ready(names: str, is_quick: bool) -> list[Peer]:
    """LakeMQ and the peers asked for, installed. One that cannot be had is told and left out."""
    found = []
    for peer in peers_named(names):
        missing = peer.missing()
        if missing and is_quick and not names:
            say(f"{peer.name}: not installed ({missing}); left out")
            continue
        if missing:
            say(f"{peer.name}: installing {missing}")
            try:
                peer.install()
            except PeerError as error:
                say(f"{peer.name}: left out. {error}")
                continue
        found.append(peer)
    return found


def chosen(options: argparse.Namespace) -> list[Workload]:
    names = [name.strip() for name in options.workloads.split(",") if name.strip()]
    known = {workload.name for workload in WORKLOADS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no workload {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [
        workload
        for workload in WORKLOADS
        if (workload.name in names if names else workload.is_quick or not options.quick)
    ]


def run_round(
    number: int, peers: list[Peer], workloads: list[Workload], where: Path, pace: Pace, into: Records
) -> None:
    order = peers[number % len(peers) :] + peers[: number % len(peers)]
    for peer in order:
        for durability in Durability:
            wanted = [workload for workload in workloads if workload.load.durability is durability]
            if not wanted:
                continue
            say(f"  {peer.title}, {durability.value}")
            try:
                into.add(turn(peer, number, durability, wanted, where, pace))
            except PeerError as error:
                say(f"    {error}")


def main() -> int:
    options = arguments()
    workloads = chosen(options)
    memory = None if options.quick else PageCache(options.directory, say)
    pace = pace_of(options, memory)
    peers = ready(options.peers, options.quick)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    minutes = options.minutes or (QUICK_MINUTES_MAX if options.quick else MINUTES_MAX)
    results = Records(machine() | {"cores_used": options.cores, "seconds": pace.seconds})
    results.peers = {
        peer.name: {"title": peer.title} | {durability.value: peer.meaning[durability] for durability in Durability}
        for peer in peers
    }
    began, took = time.monotonic(), 0.0
    if not options.quick and not options.no_growth:
        results.add(growth.measure(peers, options.directory, pace))
        results.write(options.output / "peers.json")
    for number in range(rounds):
        at = time.monotonic()
        if (at - began + took) / 60 > minutes:  # those without clients, at the end, take less
            say(f"{number} rounds of {rounds}: {minutes:g} minutes would be over before another ends")
            break
        say(f"round {number + 1} of {rounds}")
        run_round(number, peers, workloads, options.directory, pace, results)
        took = time.monotonic() - at
        results.write(options.output / "peers.json")  # what is done is kept, whatever comes
    results.machine["load_average_after"] = os.getloadavg()[0]
    results.machine["minutes"] = round((time.monotonic() - began) / 60, 1)
    results.write(options.output / "peers.json")
    (options.output / "peers.md").write_text(tables.markdown(results))
    for path in plots.draw(results, options.output):
        say(f"wrote {path}")
    print(tables.plain(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

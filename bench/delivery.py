"""Delivery against a broker process on this machine, part by part.

    python bench/delivery.py [--quick] [--json] [--parts delays,delays-in-60-s,acks,transactions]

delays: a million messages that wait, each due at its own time, sent beforehand. How late each one is when a consumer
has it who waits for it, by the clock that all share; that none is early; what they cost in memory; and what a producer
of other messages can send meanwhile, with a second broker where nothing waits as the baseline, in turns, as the median
of the turns' ratios.

acks and transactions: `bench/acks.py` and `bench/transactions.py`, which also run alone.

A producer and a consumer of our own, over bare sockets, share the machine with the broker.
"""

import argparse
import os
import statistics
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from acks import acks
from client import APP, ORDERS, WRITE, Bare, Broker, ack_frame, bare_pipeline
from lakemq.compression import Compression
from lakemq.envelope import pack
from lakemq.message import Message
from lakemq.wire.commands import decode_response, encode_request
from lakemq.wire.consume import FetchTopicMessage, TopicFetch
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce
from page_cache import PageCache
from transactions import transactions

from measure import Result, report

PARTS = ("delays", "delays-in-60-s", "acks", "transactions")
TOPIC = "delayed"
DUE_PER_SECOND = 10_000
PER_REQUEST = 100
FETCH_COUNT = 1000
BODY = b"x" * 200
_STAND_IN = 1_700_000_000_000  # for a due time, to be replaced
_DIGITS = 13
_DAY_MS = 86_400_000
_MARK = b"DELIVER_AT="
_HEAD = struct.Struct(">ihq7xqi")  # of a message: length, partition, index, sendTime, storeTime after that


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def rss_mb(broker: Broker) -> float:
    """Memory of its own: pages of the journal that it reads from mapped files are not counted, they can go any time."""
    with open(f"/proc/{broker._process.pid}/status") as file:
        sizes = dict(line.split(":", 1) for line in file)
    return int(sizes["RssAnon"].split()[0]) * 1024 / 1e6


def cpu_seconds(broker: Broker) -> float:
    with open(f"/proc/{broker._process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def template() -> bytes:
    """A request for many messages that are to wait, each until its own time: one entry for each."""
    entries = []
    for nth in range(PER_REQUEST):
        attributes = {"DELIVER_AT": str(_STAND_IN + nth)}
        message = pack(Message(body=BODY, app=APP, partition=nth % 4, attributes=attributes, send_time_ms=wall_ms()))
        entries.append(TopicProduce(TOPIC, "", 5000, WRITE, MessageBlock(1, (message,))))
    return b"".join(encode_request(ProduceMessage(tuple(entries), APP), form=Form(), request_id=1, send_time_ms=0))


def send_delays(broker: Broker, dues: Sequence[int]) -> float:
    """Send messages that wait until then; how many a second were taken."""
    bare, frame = Bare(broker.port, TOPIC), template()
    pieces, at = [], 0
    for nth in range(PER_REQUEST):
        place = frame.index(str(_STAND_IN + nth).encode(), at)
        pieces.append(frame[at:place])
        at = place + _DIGITS
    start = time.perf_counter()
    try:
        for first in range(0, len(dues), PER_REQUEST):
            texts = [b"%d" % due_ms for due_ms in dues[first : first + PER_REQUEST]]
            bare.send(b"".join(chain.from_iterable(zip(pieces, texts, strict=True))) + frame[at:])
            _, told = decode_response(bare.receive(), Dialect.DOCUMENTED)
            codes = {one.code for one in told.topics}
            if codes != {0}:
                raise SystemExit(f"refused with codes {codes}")
    finally:
        bare.close()
    return len(dues) / (time.perf_counter() - start)


def spread(count: int, first_due_ms: int, due_per_second: int) -> list[int]:
    """Due times, evenly apart, in an order that is not theirs."""
    stride = 7919  # coprime to the count
    return [first_due_ms + nth * stride % count * 1000 // due_per_second for nth in range(count)]


class Arrivals:
    """Receives what is due, and notes how late it is."""

    def __init__(self, broker: Broker, group: str) -> None:
        self._app = f"{APP}.{group}"
        self._bare = Bare(broker.port, TOPIC, self._app)
        self._fetch = b"".join(
            encode_request(
                FetchTopicMessage((TopicFetch(TOPIC, FETCH_COUNT),), self._app, 0, 1000),
                form=Form(),
                request_id=1,
                send_time_ms=0,
            )
        )
        self.late_ms: list[int] = []
        self.released_ms: list[int] = []  # the same at the broker, when it stored them
        self.places: set[tuple[int, int]] = set()

    def receive(self, count: int, until_ms: int) -> None:
        """So many, if they come by then."""
        while len(self.late_ms) < count and wall_ms() < until_ms:
            self._bare.send(self._fetch)
            frame = self._bare.receive()
            now_ms = wall_ms()
            _, ack = decode_response(frame, Dialect.DOCUMENTED)
            taken: dict[int, list[int]] = {}
            for part in ack.topics[0].messages.parts:
                for partition, index, due_ms, stored_ms in _messages(bytes(part)):
                    taken.setdefault(partition, []).append(index)
                    self.late_ms.append(now_ms - due_ms)
                    self.released_ms.append(stored_ms - due_ms)
                    self.places.add((partition, index))
            for partition, indexes in taken.items():
                self._bare.send(ack_frame(TOPIC, self._app, partition, indexes[0], indexes[-1] + 1))
                self._bare.receive()

    def close(self) -> None:
        self._bare.close()


def _messages(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Partition, index, due time and store time of each."""
    at = 0
    while at < len(data):
        length, partition, index, sent_ms, stored_ms = _HEAD.unpack_from(data, at)
        mark = data.index(_MARK, at) + len(_MARK)
        yield partition, index, int(data[mark : mark + _DIGITS]), sent_ms + stored_ms
        at += length


def quantile(values: list[int], part: float) -> int:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def lateness(broker: Broker, count: int, first_due_ms: int, due_per_second: int, group: str) -> list[Result]:
    """Wait for them, and say how late they were."""
    arrivals = Arrivals(broker, group)
    time.sleep(max(first_due_ms - wall_ms(), 0) / 1000)
    cpu, start = cpu_seconds(broker), time.perf_counter()
    try:
        arrivals.receive(count, first_due_ms + count * 1000 // due_per_second + 60_000)
    finally:
        arrivals.close()
    used = (cpu_seconds(broker) - cpu) / (time.perf_counter() - start)
    late, what = arrivals.late_ms, f"{count:,} delays, {due_per_second:,} due a second"
    early, p99 = sum(one < 0 for one in arrivals.released_ms), quantile(late, 0.99)
    aim = "at most 100" if due_per_second <= DUE_PER_SECOND else ""  # what is promised is for that many
    lost, doubled = count - len(arrivals.places), len(late) - len(arrivals.places)
    return [
        Result(f"{what}: early", early, "messages", aim="none", met=early == 0),
        Result(f"{what}: lost", lost, "messages", aim="none", met=lost == 0),
        Result(f"{what}: received twice", doubled, "messages", aim="none", met=doubled == 0),
        Result(f"{what}: released late, p99", quantile(arrivals.released_ms, 0.99), "ms"),
        Result(f"{what}: late, median", quantile(late, 0.5), "ms"),
        Result(f"{what}: late, p99", p99, "ms", aim=aim, met=p99 <= 100 if aim else None),
        Result(f"{what}: late, the latest", max(late), "ms"),
        Result(f"{what}: the broker's CPU", round(100 * used), "% of a core"),
    ]


def delays(count: int, due_per_second: int, rounds: int, many: int, memory: PageCache | None) -> list[Result]:
    waiting, idle = Broker(), Broker()
    results: list[Result] = []
    try:
        before = rss_mb(waiting)
        probe = send_delays(idle, spread(5000, wall_ms() + 30 * _DAY_MS, due_per_second))
        first_due_ms = wall_ms() + round(1500 * count / probe) + rounds * many // 50 + 5000
        say(f"sending {count:,}, the first is due in {(first_due_ms - wall_ms()) / 1000:.0f} s")
        rate = send_delays(waiting, spread(count, first_due_ms, due_per_second))
        results.append(Result(f"delays sent, {PER_REQUEST} to a request, up to {count:,}", round(rate), "messages/s"))
        results.append(
            Result(f"memory of the broker with {count:,} delays", round(rss_mb(waiting)), "MB", before, None)
        )
        results[-1].ratio = round(rss_mb(waiting) / before, 2)
        say("other messages, in turns")
        pairs = [_in_turns(idle, waiting, many, memory, idle_first=nth % 2 == 0) for nth in range(rounds)]
        baseline, value = (round(statistics.median(one)) for one in zip(*pairs, strict=True))
        name = f"other messages sent, with {count:,} delays that wait"
        # Of pairs taken one after the other: the machine's moods last longer than a pair.
        ratio = round(statistics.median(mine / other for other, mine in pairs), 3)
        results.append(Result(name, value, "messages/s", baseline, ratio, "at least 0.95 of none", ratio >= 0.95))
        if wall_ms() >= first_due_ms:
            raise SystemExit("the machine is too slow for this: delays were due before all had been sent")
        results += lateness(waiting, count, first_due_ms, due_per_second, "late")
        results.append(Result("memory of the broker after that", round(rss_mb(waiting)), "MB"))
    finally:
        waiting.stop()
        idle.stop()
    return results


def _in_turns(
    idle: Broker, waiting: Broker, many: int, memory: PageCache | None, *, idle_first: bool
) -> tuple[float, float]:
    """What each takes in a second; neither is always the first."""
    rates = {}
    if memory is not None:
        memory.fill()
    for broker in (idle, waiting) if idle_first else (waiting, idle):
        rates[broker] = bare_pipeline(broker, many, ORDERS, Compression.NONE)
    return rates[idle], rates[waiting]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under two minutes, with 50 000 delays")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all, 14 minutes)")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise SystemExit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    memory = None if options.quick or "delays" not in options.parts else PageCache(Path("."), say)
    results: list[Result] = []
    for part in parts:
        say(f"{part} …")
        match part:
            case "delays" if options.quick:
                results += delays(50_000, DUE_PER_SECOND, 5, 50_000, memory)
            case "delays":
                results += delays(1_000_000, DUE_PER_SECOND, 31, 100_000, memory)
            case "delays-in-60-s" if not options.quick:
                results += delays(1_000_000, 1_000_000 // 60, 31, 100_000, memory)
            case "acks":
                results += acks(options.quick)
            case "transactions":
                results += transactions(options.quick)
    if memory is not None:
        memory.close()
    report(results, options.json)


if __name__ == "__main__":
    main()

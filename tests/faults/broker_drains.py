"""SIGTERM under load, again and again: a broker that is asked to stop answers what it took, and ends in peace (F06).

    python -m tests.faults.broker_drains --count 100 --restarts 10

drains: every message that was stored was answered before its connection ended, nothing acked is lost, the exit status
is 0, and the next start finds a clean directory. restarts: our own client goes on through rolling restarts; its user
notices nothing but the time it takes.
"""

import argparse
import asyncio
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import lakemq
from lakemq.storage.survey import survey
from lakemq.world.disk import RealDisk

from .broker_kills import SETTINGS
from .broker_load import Load
from .broker_process import ForkedBroker, Nursery, broker
from .tools import finish, run_command, say, scratch

STOP_SECONDS_MAX = 15.0
CLIENT_TIMEOUT = "30s"


async def drain_round(nursery: Nursery, place: Path, count: int, rng: Random, totals: dict[str, Any]) -> list[str]:
    """So many stops on one directory."""
    one = ForkedBroker(nursery, place, SETTINGS)
    load = Load(rng.randrange(1 << 30))
    account = load.account
    try:
        for number in range(1, count + 1):
            one.start()
            load.start(one.port)
            await asyncio.sleep(rng.choice((rng.uniform(0, 0.05), rng.uniform(0.05, 0.3))))
            began = time.monotonic()
            stopping = asyncio.create_task(asyncio.to_thread(one.stop))  # BrokerError if the status is not 0
            await stopping
            totals["stops_s"].append(time.monotonic() - began)
            await load.wait_until_cut()
            totals["stops"] += 1
            found = survey(RealDisk(str(one.data)))
            if found.checkpoint is None or not found.checkpoint.is_clean or not found.is_sound:
                account.add(f"stop {number} did not leave the directory clean: {found.findings[:3]}")
            one.start()
            await load.check(one.port, is_whole=number == count)
            totals["stored_unanswered"] += _unanswered(load)
            if "recovery:" in one.new_stderr():
                account.add(f"the start after stop {number} had something to recover")
            one.stop()
            if account.problems:
                break
        one.check_stderr()
    except Exception as error:
        account.add(f"{type(error).__name__}: {error}")
    finally:
        await load.stop()
        one.end()
    totals["acked"] += sum(account.acked_levels.values())
    totals["lost"] += account.lost
    for code, number in account.codes.items():
        totals["codes"][code] = totals["codes"].get(code, 0) + number
    return account.problems


def _unanswered(load: Load) -> int:
    """Messages that are stored though nobody was told so, since this was last asked; those at RECEIVE do not count."""
    account = load.account
    receivers = {one.run for one in load.producers if one.style.level == 1}
    told = {(place, index) for place, promised in account.promised.items() for index in promised}
    found = 0
    for place, names in account.seen.items():
        start = load.counted.get(place, 0)
        load.counted[place] = len(names)
        for index in range(start, len(names)):
            name = names[index]
            if (place, index) not in told and name.run not in receivers and name not in account.coded:
                found += 1
    return found


# --- our own client --------------------------------------------------------------------------------------------------


class User:
    """Threads that use lakemq.connect() as anybody would."""

    def __init__(self, port: int) -> None:
        self.url = f"lakemq://127.0.0.1:{port}"
        self.is_over = threading.Event()
        self.is_sent = threading.Event()
        self.is_connected = threading.Barrier(5)  # to connect is no fault's business: it may fail at once
        self.errors: list[str] = []
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.threads = [
            threading.Thread(target=self._guarded, args=(work,), name=work.__name__, daemon=True)
            for work in (self._send, self._send_many, self._send_soon, self._consume)
        ]

    def start(self) -> None:
        """Returns when all are connected."""
        for thread in self.threads:
            thread.start()
        self.is_connected.wait(30)

    def finish(self) -> None:
        """All that was sent is received, or time is over."""
        self.is_over.set()
        for thread in self.threads[:-1]:
            thread.join(60)
        self.is_sent.set()
        self.threads[-1].join(60)
        self.errors += [f"{thread.name} does not end" for thread in self.threads if thread.is_alive()]

    def _guarded(self, work: Any) -> None:
        try:
            with lakemq.connect(self.url, app="user", timeout=CLIENT_TIMEOUT) as client:
                self.is_connected.wait(30)
                work(client)
        except Exception as error:
            self.errors.append(f"{work.__name__}: {type(error).__name__}: {error}")
            self.is_over.set()

    def _timed(self, began: float) -> None:
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _send(self, client: Any) -> None:
        number = 0
        while not self.is_over.is_set():
            began = time.monotonic()
            body = f"one {number}"
            client.send("rolling", body)
            self.sent[body] += 1
            number += 1
            self._timed(began)

    def _send_many(self, client: Any) -> None:
        number = 0
        while not self.is_over.is_set():
            began = time.monotonic()
            bodies = [f"many {number} {nth}" for nth in range(10)]
            report = client.send_many("rolling", bodies, acks="write")
            assert not report.failed, f"send_many: {report.failed[:1]}"
            self.sent.update(bodies)
            number += 1
            self._timed(began)

    def _send_soon(self, client: Any) -> None:
        number = 0
        while not self.is_over.is_set():
            began = time.monotonic()
            bodies = [f"soon {number} {nth}" for nth in range(10)]
            futures = [client.send_soon("rolling", body) for body in bodies]
            for future in futures:
                future.result()
            self.sent.update(bodies)
            number += 1
            self._timed(began)

    def _consume(self, client: Any) -> None:
        with client.consumer("rolling", long_poll="500ms") as consumer:
            while True:
                is_sent = self.is_sent.is_set()
                received = consumer.receive(500, timeout="1s")
                self.received.update(delivery.body.decode() for delivery in received)
                if is_sent and not received and not self.sent - self.received:
                    return


def restarts(place: Path, count: int, rng: Random) -> tuple[dict[str, Any], list[str]]:
    """Stop and start a broker on its port while a user is at work."""
    problems: list[str] = []
    downtimes = []
    with broker(place, {}) as one:
        one.keeps_port = True
        user = User(one.port)
        user.start()
        for _ in range(count):
            if user.is_over.wait(rng.uniform(0.2, 1.0)):
                break
            began = time.monotonic()
            one.restart()
            downtimes.append(time.monotonic() - began)
        user.is_over.wait(0.5)
        user.finish()
        problems += user.errors
        missing = user.sent - user.received
        if missing:
            problems.append(f"{len(missing)} messages were acked and never received: {list(missing)[:3]}")
        invented = [body for body in user.received if body not in user.sent]
        # What was sent while a thread ended with an error is not in the list.
        if invented and not user.errors:
            problems.append(f"{len(invented)} messages were received that nobody sent: {invented[:3]}")
        one.check_stderr()
        one.stop()
    told = {
        "restarts": len(downtimes),
        "down_max_s": round(max(downtimes, default=0), 2),
        "client_sent": sum(user.sent.values()),
        "client_copies": sum(user.received.values()) - sum(user.sent.values()),
        "client_slowest_call_s": round(user.slowest_s, 2),
        "client_errors": len(user.errors),
    }
    return told, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, started = Random(options.seed), time.monotonic()
    totals: dict[str, Any] = {"stops": 0, "acked": 0, "lost": 0, "stored_unanswered": 0, "codes": {}, "stops_s": []}
    problems: list[str] = []
    with Nursery() as nursery:
        while totals["stops"] < options.count and not problems:
            with scratch() as place:
                count = min(20, options.count - totals["stops"])
                problems += asyncio.run(drain_round(nursery, place, count, rng, totals))
            say(f"{totals['stops']} stops, {totals['acked']} acked, {totals['lost']} lost, codes {totals['codes']}")
    if totals["stored_unanswered"]:
        problems.append(f"{totals['stored_unanswered']} messages were stored and their senders never told")
    stops = sorted(totals.pop("stops_s"))
    if stops and stops[-1] > STOP_SECONDS_MAX:
        problems.append(f"a stop took {stops[-1]:.1f} s")
    told: dict[str, Any] = {}
    if options.restarts:
        with scratch() as place:
            told, more = restarts(place, options.restarts, rng)
            problems += more
    summary = {
        **totals,
        "stop_p50_s": round(stops[len(stops) // 2], 3) if stops else None,
        "stop_max_s": round(stops[-1], 3) if stops else None,
        **told,
        "seconds": round(time.monotonic() - started, 1),
    }
    return finish(summary, problems)


if __name__ == "__main__":
    run_command(main)

"""SIGSTOP and SIGCONT: a broker that stands still for seconds, and a consumer that does (F05, F09).

    python -m tests.faults.broker_pauses --rounds 5

A broker that wakes up goes on where it was: nobody is cut off, nothing is lost. What a consumer had when it fell asleep
goes to another one, not before its lease is over; the ack that it sends when it wakes up neither harms nor helps.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from lakemq.envelope import pack, unpack_all
from lakemq.message import Message
from lakemq.wire.consume import CommitAck, FetchTopicMessage, MessageAck, PartitionAcks, TopicAcks, TopicFetch
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce

from .broker_account import ranges_of, topic_name
from .broker_disk import until
from .broker_kills import SETTINGS
from .broker_link import ACK_FLUSH, Link
from .broker_load import Load
from .broker_process import Sections, broker
from .tools import ROOT, finish, run_command, say, scratch
from .writer import die_with_parent

PAUSE_SECONDS = 2.0
LEASE_MS = 1500
APP = "sleeper"
TOPIC = 1


async def broker_pauses(place: Path, rng: Random, told: dict[str, Any]) -> list[str]:
    """The broker stands still under load, and goes on."""
    load = Load(rng.randrange(1 << 30))
    account = load.account
    # A sync that was under way is not slow because the broker slept.
    settings: Sections = {**SETTINGS, "broker": {"slow_sync_ms": 500, "sync_limit_ms": 1000}}
    with broker(place, settings) as one:
        load.start(one.port)
        await until(lambda: account.acked_levels["flush"] >= 20, "acks")
        one.signal(signal.SIGSTOP)
        answered = load.answered
        try:
            await asyncio.sleep(PAUSE_SECONDS)  # this is the fault itself
        finally:
            one.signal(signal.SIGCONT)
        began = time.monotonic()
        told["answered_while_paused"] = load.answered - answered  # what was on its way
        await until(lambda: load.answered > answered + 100, "answers after the pause")
        told["first_answers_after_s"] = round(time.monotonic() - began, 3)
        if not load.is_complete:
            account.add("the pause cost somebody the connection")
        await load.stop()
        if account.codes:
            account.add(f"the pause made the broker refuse: {dict(account.codes)}")
        await load.check(one.port, is_whole=True)
        one.check_stderr()
        one.stop()
    told["acked"] = told.get("acked", 0) + sum(account.acked_levels.values())
    told["lost"] = told.get("lost", 0) + account.lost
    return account.problems


async def consumer_pauses(place: Path, told: dict[str, Any]) -> list[str]:
    """A consumer stands still with messages in hand."""
    problems: list[str] = []
    with broker(place) as one:
        link = await Link.open(one.port, APP, topic_name(TOPIC))
        for number in range(5):
            packed = pack(Message(body=f"message {number}".encode(), partition=0, app=APP))
            entry = TopicProduce(topic_name(TOPIC), "", 20_000, ACK_FLUSH, MessageBlock(1, (packed,)))
            await link.ask(ProduceMessage((entry,), APP), ACK_FLUSH)
        sleeper = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.broker_pauses", "--be-consumer", str(one.port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert sleeper.stdin is not None
        assert sleeper.stdout is not None
        try:
            lent = json.loads(await asyncio.to_thread(sleeper.stdout.readline))
            sleeper.send_signal(signal.SIGSTOP)
            indexes, waited = await _receive(link)
            told["redelivered_after_s"] = round(time.time() - lent["when"], 2)
            if indexes != lent["indexes"]:
                problems.append(f"the sleeper had {lent['indexes']}, another consumer got {indexes}")
            if told["redelivered_after_s"] < LEASE_MS / 1000:
                problems.append(f"redelivered after {told['redelivered_after_s']} s, before the lease was over")
            if waited > 10:
                problems.append(f"redelivered {waited:.1f} s after it was asked for")
            code = await _ack(link, indexes[:3])
            if code != 0:
                problems.append(f"the second consumer's ack got {code}")
            sleeper.send_signal(signal.SIGCONT)
            sleeper.stdin.write("ack\n")
            sleeper.stdin.flush()
            late = json.loads(await asyncio.to_thread(sleeper.stdout.readline))
            told["late_ack_code"] = late["code"]
            (stand,) = [found for found in await ranges_of(link, TOPIC, APP) if found.partition == 0]
            # Taken, it acks all that it names; refused, it changes nothing.
            expected = 5 if late["code"] == 0 else 3
            if stand.ack_index != expected:
                problems.append(f"after the late ack ({late['code']}) the app stands at {stand.ack_index}")
            if await _ack(link, indexes[3:]) not in (0, 140):
                problems.append("the second consumer cannot go on")
        finally:
            sleeper.kill()
            sleeper.wait(10)
            sleeper.stdin.close()
            sleeper.stdout.close()
        link.drop()
        one.check_stderr()
        one.stop()
    return problems


async def _receive(link: Link) -> tuple[list[int], float]:
    """What there is, however long it takes."""
    began = time.monotonic()
    while True:
        command = FetchTopicMessage((TopicFetch(topic_name(TOPIC), 100),), APP, LEASE_MS, 1000)
        block = (await link.ask(command)).topics[0].messages
        if block.count:
            return [value.index for value in unpack_all(block.joined())], time.monotonic() - began
        if time.monotonic() - began > 40:
            raise TimeoutError("the messages of a consumer that stands still are not redelivered")


async def _ack(link: Link, indexes: list[int]) -> int:
    acks = tuple(MessageAck(0, index, 0) for index in indexes)
    ack = await link.ask(CommitAck((TopicAcks(topic_name(TOPIC), (PartitionAcks(0, acks),)),), APP))
    return int(ack.topics[0].partitions[0].code)


async def be_consumer(port: int) -> None:
    """The one that will be stopped: fetch, say so, and ack when told to."""
    die_with_parent()
    link = await Link.open(port, APP, topic_name(TOPIC))
    began = time.time()
    indexes, _ = await _receive(link)
    say(json.dumps({"indexes": indexes, "when": began}))
    await asyncio.to_thread(sys.stdin.readline)
    say(json.dumps({"code": await _ack(link, indexes)}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--be-consumer", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_consumer:
        asyncio.run(be_consumer(options.be_consumer))
        return 0
    rng, started = Random(options.seed), time.monotonic()
    told: dict[str, Any] = {}
    problems: list[str] = []
    for number in range(1, options.rounds + 1):
        with scratch() as place:
            try:
                problems += asyncio.run(broker_pauses(place / "broker", rng, told))
                problems += asyncio.run(consumer_pauses(place / "consumer", told))
            except Exception as error:
                problems.append(f"{type(error).__name__}: {error}")
        say(f"round {number}: {told}")
        if problems:
            break
    return finish({"rounds": number, **told, "seconds": round(time.monotonic() - started, 1)}, problems)


if __name__ == "__main__":
    run_command(main)

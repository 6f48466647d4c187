"""The broker against a bare C server that takes and answers the same frames, in the same run and in turns.

    python bench/broker.py [--quick] [--json] [--cases a,b-write,fetch] [--rounds N] [--seconds S] [--directory DIR]

| case | load, bodies of 1 KB |
|---|---|
| a | 64 connections, 1 request outstanding on each, 1 message a request |
| b | 8 connections, 64 outstanding, 1 message a request |
| c | 8 connections, 1 outstanding, an ARRAY of 100 messages a request |
| d | 8 connections, 1 outstanding, a batch of 100 messages a request |
| fetch | 8 consumers, FETCH_PARTITION_MESSAGE of 1 MB each, every one from a partition of its own |
| ack | 8 consumers, FETCH_TOPIC_MESSAGE of 100, then COMMIT_ACK of these |

a to d are run with ACK_WRITE (`a-write`) and with ACK_FLUSH (`a-flush`). The load is made by `broker_load.c`, the
server it is compared with is `broker_baseline.c`; both say what they leave out. Load and server share this machine's
cores, and the machine is shared too: read ratios.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jmq4_frames import APP, fetch_partition, produce, request
from lakemq import envelope
from lakemq.message import BatchItem, BatchMessage, Message, Qos
from lakemq.wire.commands import Ack, Command, decode_response
from lakemq.wire.consume import (
    OLDEST_INDEX,
    CommitAckIndex,
    FetchTopicMessage,
    PartitionIndex,
    TopicFetch,
    TopicIndexes,
)
from lakemq.wire.dialect import Dialect
from lakemq.wire.session import AddConnection, AddConsumer, AddProducer
from page_cache import PageCache

from measure import Result, report

TOPIC = "bench"
FETCH_TOPIC = "bench-fetch"
PARTITIONS = 8
BODY_BYTES = 1024
BATCH_COUNT = 100
FETCH_BYTES = 1 << 20
ACK_COUNT = 100
# The C server's journal. Large, and the server started anew before each run, so that it appends to new pages as the
# broker does: a circle that stays in memory spares it a third of the work of a write.
JOURNAL_BYTES = 4 << 30
DATA_BYTES_MAX = 2 << 30  # then the broker starts anew, in an empty directory
START_SECONDS = 30
LOAD_SECONDS_MAX = 60  # beyond what was asked for
OTHERS_MAX = 0.2  # cores; if others used more while a case was run, its figures do not decide an aim
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
HERE = Path(__file__).parent


class BenchError(Exception):
    """Something did not start, or answered what it should not have."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the machine ------------------------------------------------------------------------------------------------------


@dataclass
class Cores:
    """Where processes run. The load has a core of its own, the servers have the others.

    Left alone, the scheduler at times puts both sides of a conversation on one core and at times on two, which makes a
    factor of 1.6 at 64 x 1 and of 2 for fetches. Where others are busy, too, that freedom may be worth more.
    """

    load: list[int]
    servers: list[int]

    def let_free(self) -> None:
        self.load = self.servers = sorted({*self.load, *self.servers})


def cores_here() -> Cores:
    cpus = sorted(os.sched_getaffinity(0))
    return Cores(cpus[-1:], cpus[:-1] or cpus)


CORES = cores_here()


def on(cpus: list[int]) -> Callable[[], None]:
    """For Popen: from its first instruction on, all threads of the process stay there."""
    return lambda: os.sched_setaffinity(0, cpus)


def user_seconds() -> float:
    """What all processes of the machine have used outside the kernel, and what its host has kept from us.

    Time inside the kernel is left out because kernel threads work for the servers, too: they write the journal back.
    """
    user, nice, _, _, _, _, _, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + steal) / TICKS_PER_SECOND


def own_user_seconds() -> float:
    """What of it is this process's and that of its children that have ended: of every load so far."""
    return sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One load. `ratio_min` is of the C server's messages a second, `rate_min` of messages, `mb_min` of MB a second."""

    name: str
    title: str
    mode: str
    connections: int
    window: int
    kind: str = ""  # produce: what a request holds
    qos: Qos = Qos.WRITE
    topic: str = TOPIC
    ratio_min: float | None = None
    rate_min: float | None = None
    mb_min: float | None = None

    @property
    def aim(self) -> str:
        if self.ratio_min is not None:
            return f"at least {self.ratio_min:g} of the C server"
        if self.rate_min is not None:
            return f"at least {self.rate_min:,.0f} messages/s"
        return f"at least {self.mb_min:,.0f} MB/s" if self.mb_min is not None else ""


def produce_cases(letter: str, title: str, connections: int, window: int, kind: str, **aims: float) -> list[Case]:
    return [
        Case(
            f"{letter}-{qos.value}",
            f"{title}, ACK_{qos.name}",
            "produce",
            connections,
            window,
            kind,
            qos,
            ratio_min=aims.get("ratio_min") if qos is Qos.WRITE else None,
            rate_min=aims.get("flush_rate_min") if qos is Qos.FLUSH else None,
        )
        for qos in (Qos.WRITE, Qos.FLUSH)
    ]


CASES = [
    *produce_cases("a", "64 x 1", 64, 1, "single", ratio_min=0.55, flush_rate_min=20_000),
    *produce_cases("b", "8 x 64", 8, 64, "single", ratio_min=0.25),
    *produce_cases("c", "8 x 1, ARRAY of 100", 8, 1, "array", ratio_min=0.8),
    *produce_cases("d", "8 x 1, batch of 100", 8, 1, "batch"),
    Case("fetch", "8 consumers, 1 MB", "fetch", 8, 1, topic=FETCH_TOPIC, mb_min=1000),
    Case("ack", "8 consumers, 100, acks", "ack", 8, 1, topic=FETCH_TOPIC),
]
# What is fetched comes in blocks of 100 from 8 producers at once, so that a fetch has to gather what lies apart.
FILL = Case("fill", "before fetches", "produce", PARTITIONS, 4, "array", Qos.FLUSH, FETCH_TOPIC)


def cases_named(words: str) -> list[Case]:
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    known = {case.name for case in CASES} | {case.name.split("-")[0] for case in CASES}
    if unknown := [word for word in wanted if word not in known]:
        raise SystemExit(f"no case {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [case for case in CASES if case.name in wanted or case.name.split("-")[0] in wanted]


# --- frames -----------------------------------------------------------------------------------------------------------


def body(n: int) -> bytes:
    return (b'{"order":%012d,"city":"Beijing","items":[' % n).ljust(BODY_BYTES, b"7")


def business_id(n: int) -> str:
    return f"order-{n:04d}"  # all messages have one size, so that the C server finds them by multiplication


def message(n: int, partition: int = 0) -> bytes:
    return envelope.pack(
        Message(
            body=body(n),
            business_id=business_id(n),
            attributes={"TAGS": "paid"},
            app=APP,
            partition=partition,
            send_time_ms=time.time_ns() // 1_000_000,
        )
    )


def batch(count: int, partition: int = 0) -> bytes:
    items = tuple(BatchItem(body(n), business_id(n), {"TAGS": "paid"}) for n in range(count))
    return envelope.pack(
        BatchMessage(items=items, app=APP, partition=partition, send_time_ms=time.time_ns() // 1_000_000)
    )


def messages_of(kind: str) -> list[bytes]:
    match kind:
        case "single":
            return [message(0)]
        case "array":
            return [message(n) for n in range(BATCH_COUNT)]
        case "batch":
            return [batch(BATCH_COUNT)]
    raise ValueError(kind)


def frame_of(case: Case) -> bytes:
    match case.mode:
        case "produce":
            return request(produce(messages_of(case.kind), case.qos, case.topic))
        case "fetch":
            return request(fetch_partition(case.topic, 0, FETCH_BYTES // len(message(0)), 0))
        case "ack":
            # A consumer that finds every partition lent should wait a little, not ask again and again.
            return request(FetchTopicMessage((TopicFetch(case.topic, ACK_COUNT),), APP, 60_000, 20))
    raise ValueError(case.mode)


def setup_of(case: Case) -> bytes:
    role = (AddProducer if case.mode == "produce" else AddConsumer)((case.topic,), APP, 1)
    return request(AddConnection(app=APP, version="lakemq-load 1")) + request(role)


# --- servers ----------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """A process that serves on `port`, in a directory of its own."""

    name: str
    process: subprocess.Popen[str]
    directory: Path
    port: int
    pid: int  # whose time is counted

    def cpu_seconds(self) -> tuple[float, float]:
        """Used so far outside the kernel, and in it."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        words = stat.rpartition(")")[2].split()  # the command's name may hold blanks
        return int(words[11]) / TICKS_PER_SECOND, int(words[12]) / TICKS_PER_SECOND

    def data_bytes(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in self.directory.rglob("*") if path.is_file())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"{self.name} did not end within {START_SECONDS} s of SIGTERM; killed")
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def new_directory(parent: Path, name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))


def compile_programs(directory: Path) -> None:
    for name in ("broker_load", "broker_baseline"):
        source, program = HERE / f"{name}.c", directory / name
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", program, source], check=True)


def start_baseline(directory: Path, fetch_count: int = 0) -> Server:
    """The C server; with `fetch_count`, that many messages in each partition can be fetched."""
    data = new_directory(directory, "c")
    command = [directory / "broker_baseline", data / "journal", str(JOURNAL_BYTES)]
    if fetch_count:
        (data / "message").write_bytes(message(0))
        command += [data / "store", data / "message", str(fetch_count), str(PARTITIONS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=on(CORES.servers))
    assert process.stdout is not None
    line = process.stdout.readline()
    process.stdout.close()
    if not line:
        raise BenchError(f"the C server did not start: exit status {process.wait()}")
    return Server("C server", process, data, int(line), process.pid)


def broker_command(data: Path, ready: Path) -> list[str]:
    options = ["--port", "0", "--admin-port", "0", "--data", str(data), "--ready-file", str(ready)]
    return [sys.executable, "-m", "lakemq", "dev", *options, "--partitions", str(PARTITIONS)]


def start_broker(directory: Path) -> Server:
    """LakeMQ as `lakemq dev` starts it; it is ready when its ready file says so."""
    home = new_directory(directory, "lakemq")
    ready, log = home / "ready.json", home / "log"
    (home / "data").mkdir()
    with log.open("w") as output:
        process = subprocess.Popen(
            broker_command(home / "data", ready),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            preexec_fn=on(CORES.servers),
        )
    server = Server("LakeMQ", process, home, 0, process.pid)
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, ValueError):  # not there, or not whole yet
            said = json.loads(ready.read_text())
            server.port, server.pid = int(said["port"]), int(said["pid"])
            return server
        time.sleep(0.02)
    status, text = process.poll(), log.read_text()[-2000:]
    server.stop()
    how = "was not ready in time" if status is None else f"ended with status {status} instead of serving"
    raise BenchError(f"the broker {how}\n{text}")


# --- a few requests by hand, to see that both servers mean the same before they are measured ------------------------


class Session:
    """A connection that asks and waits, with LakeMQ's own encoder and decoder."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._next_id = 1
        self.ask(AddConnection(app=APP))

    def ask(self, command: Command) -> Ack:
        self._socket.sendall(request(command, self._next_id))
        frame = self._read(4)
        frame += self._read(int.from_bytes(frame, "big") - 4)
        header, ack = decode_response(frame, Dialect.DOCUMENTED)
        name = type(command).__name__
        expect(header.request_id == self._next_id, f"{name}: the answer is to request {header.request_id}")
        expect(header.status == 0, f"{name}: status {header.status} {header.error}")
        expect(ack is not None, f"{name}: an answer without payload")
        self._next_id += 1
        return ack

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            got = self._socket.recv(count - len(data))
            expect(bool(got), "the server closed the connection")
            data += got
        return bytes(data)


@contextlib.contextmanager
def session(port: int) -> Iterator[Session]:
    opened = Session(port)
    try:
        yield opened
    finally:
        opened.close()


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BenchError(otherwise)


def check_produce(server: Server) -> None:
    """Messages and batches get consecutive indexes at both levels; this also creates the topic."""
    with session(server.port) as peer:
        ack = peer.ask(AddProducer((TOPIC,), APP, 1))
        expect([one.topic for one in ack.producers] == [TOPIC], f"ADD_PRODUCER: {ack}")
        next_index = None
        partition = PARTITIONS - 1
        for qos in (Qos.WRITE, Qos.FLUSH):
            for messages, held in (([message(n, partition) for n in range(3)], 1), ([batch(5, partition)], 5)):
                (entry,) = peer.ask(produce(messages, qos, TOPIC)).topics
                expect((entry.topic, entry.code) == (TOPIC, 0), f"PRODUCE_MESSAGE: {entry}")
                expect(len(entry.results) == len(messages), f"PRODUCE_MESSAGE: {entry}")
                for result in entry.results:
                    expect(result.partition == partition, f"PRODUCE_MESSAGE: {result}")
                    expect(next_index in (None, result.index), f"PRODUCE_MESSAGE: {result}, not {next_index}")
                    next_index = result.index + held


def check_fetch(server: Server, end: int) -> None:
    """From any index on, the messages that were stored there."""
    with session(server.port) as peer:
        peer.ask(AddConsumer((FETCH_TOPIC,), APP, 1))
        for partition, index in ((0, 0), (PARTITIONS - 1, end - 5)):
            (topic,) = peer.ask(fetch_partition(FETCH_TOPIC, partition, 5, index)).topics
            (entry,) = topic.partitions
            expect((topic.topic, entry.partition, entry.code) == (FETCH_TOPIC, partition, 0), f"fetch: {entry}")
            found = list(envelope.unpack_all(entry.messages.joined()))
            expect([one.index for one in found] == [*range(index, index + 5)], f"fetch: {found}")
            expect({one.partition for one in found} == {partition}, f"fetch: {found}")
            expect(all(isinstance(one, Message) and len(one.body) == BODY_BYTES for one in found), f"fetch: {found}")


def rewind(server: Server) -> None:
    """The app starts again from the oldest message of each partition."""
    with session(server.port) as peer:
        peer.ask(AddConsumer((FETCH_TOPIC,), APP, 1))
        indexes = tuple(PartitionIndex(partition, OLDEST_INDEX) for partition in range(PARTITIONS))
        (topic,) = peer.ask(CommitAckIndex((TopicIndexes(FETCH_TOPIC, indexes),), APP)).topics
        expect(all(one.code == 0 for one in topic.partitions), f"COMMIT_ACK_INDEX: {topic}")


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one load on one server came to; `load_cpu` is the load's share of a core, `cpu_us` is the server's."""

    messages_s: float
    mb_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    load_cpu: float
    cpu_us: float  # per message, the warm-up's included
    others: float  # cores that other processes used meanwhile


def load(directory: Path, server: Server, case: Case, **options: float) -> dict[str, float]:
    """Run the load program; BenchError if a reply was not as it should be."""
    (directory / "frame").write_bytes(frame_of(case))
    (directory / "setup").write_bytes(setup_of(case))
    words = {
        "port": server.port,
        "mode": case.mode,
        "connections": case.connections,
        "window": case.window,
        "partitions": PARTITIONS,
        "setup": directory / "setup",
        "frame": directory / "frame",
        **options,
    }
    command = [str(directory / "broker_load"), *(f"{name}={value}" for name, value in words.items())]
    time_max = LOAD_SECONDS_MAX + options.get("seconds", 0)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=time_max, preexec_fn=on(CORES.load)
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{case.name} on {server.name}: no end after {time_max:.0f} s") from None
    if done.returncode:
        raise BenchError(f"{case.name} on {server.name}: {(done.stderr + done.stdout).strip()}")
    return json.loads(done.stdout)


@dataclass
class CaseRuns:
    """The rounds of one case: pairs that were run one after the other."""

    case: Case
    ours: list[Run] = field(default_factory=list)
    theirs: list[Run] = field(default_factory=list)
    failure: str = ""

    @property
    def others(self) -> float:
        """Cores that other processes used on average."""
        return statistics.mean(run.others for run in self.ours + self.theirs)

    @property
    def is_reliable(self) -> bool:
        return self.others <= OTHERS_MAX


@dataclass
class Bench:
    """The two servers, and what they are asked to do."""

    directory: Path
    seconds: float
    warmup: float
    rounds: int
    fetch_count: int  # messages in each partition
    memory: PageCache | None = None  # kept filled, if given
    with_broker: bool = True
    ours: Server | None = None
    theirs: Server | None = None

    def stop(self) -> None:
        for server in (self.ours, self.theirs):
            if server is not None:
                server.stop()
        self.ours = self.theirs = None

    def run_cases(self, cases: list[Case]) -> list[CaseRuns]:
        found = []
        for is_fetch in (False, True):  # they need other servers
            chosen = [case for case in cases if (case.mode != "produce") == is_fetch]
            if chosen:
                self._start(is_fetch)
                found += [self._run_case(case) for case in chosen]
                self.stop()
        return found

    def _start(self, is_fetch: bool) -> None:
        self.theirs = start_baseline(self.directory, self.fetch_count if is_fetch else 0)
        self._check(self.theirs, is_fetch)
        if self.with_broker:
            try:
                self._start_ours(is_fetch)
            except BenchError as error:
                say(f"\n{error}\nonly the C server is measured")
                self.with_broker = False

    def _start_ours(self, is_fetch: bool) -> None:
        if self.ours is not None:
            self.ours.stop()
            self.ours = None
        self.ours = start_broker(self.directory)
        if is_fetch:
            load(self.directory, self.ours, FILL, requests=self.fetch_count // BATCH_COUNT)
        self._check(self.ours, is_fetch)

    def _renew(self, case: Case) -> None:
        """Both keep what they are sent: before it is too much they start anew."""
        if case.mode == "produce" and self.theirs is not None:
            self.theirs.stop()
            self.theirs = start_baseline(self.directory)
            self._check(self.theirs, is_fetch=False)
        if self.ours is not None and case.mode == "produce" and self.ours.data_bytes() > DATA_BYTES_MAX:
            self._start_ours(is_fetch=False)

    def _check(self, server: Server, is_fetch: bool) -> None:
        if is_fetch:
            check_fetch(server, self.fetch_count)
        else:
            check_produce(server)

    def _run_case(self, case: Case) -> CaseRuns:
        found = CaseRuns(case)
        for turn in range(self.rounds):
            try:
                self._renew(case)
            except BenchError as error:
                found.failure = str(error)
            sides: list[tuple[Server | None, list[Run]]] = [(self.ours, found.ours), (self.theirs, found.theirs)]
            for server, runs in sides[:: -1 if turn % 2 else 1]:
                if server is None or (found.failure and server is self.ours):
                    continue
                try:
                    runs.append(self._run(case, server))
                except BenchError as error:
                    if server is self.theirs:
                        raise
                    found.failure = str(error)
            say(f"{case.name} {turn + 1}/{self.rounds} {found.failure}")
        return found

    def _run(self, case: Case, server: Server) -> Run:
        if case.mode == "ack" and server is self.ours:
            rewind(server)
        os.sync()  # what the other one left to be written should not be written in this one's time
        if self.memory is not None:
            self.memory.fill()
        options: dict[str, float] = {"seconds": self.seconds, "warmup": self.warmup}
        if case.mode != "produce":
            options["end"] = self.fetch_count
        if case.mode == "ack" and server is self.ours:
            options["total"] = self.fetch_count * PARTITIONS
        began, busy, (user, system) = time.monotonic(), user_seconds() - own_user_seconds(), server.cpu_seconds()
        got = load(self.directory, server, case, **options)
        user_now, system_now = server.cpu_seconds()
        others = user_seconds() - own_user_seconds() - busy - (user_now - user)
        cpu = user_now - user + system_now - system
        expect(got["messages"] > 0, f"{case.name} on {server.name}: no message in the time that counts")
        names = ("messages_s", "mb_s", "p50_us", "p99_us", "p999_us", "load_cpu")
        return Run(
            *(got[name] for name in names),
            cpu_us=cpu / got["messages_all"] * 1e6,
            others=max(others, 0) / (time.monotonic() - began),
        )


# --- what is printed --------------------------------------------------------------------------------------------------


COLUMNS = f"{'messages/s':>11} {'MB/s':>7} {'CPU us/m':>8} {'p50 us':>8} {'p99 us':>8} {'load':>5} {'others':>6}"


def run_words(run: Run | None) -> str:
    if run is None:
        return f"{'–':>11}".ljust(len(COLUMNS))
    return (
        f"{run.messages_s:>11,.0f} {run.mb_s:>7,.0f} {run.cpu_us:>8.2f} {run.p50_us:>8,.0f} {run.p99_us:>8,.0f} "
        f"{run.load_cpu:>5.0%} {run.others:>6.2f}"
    )


def round_line(case: Case, turn: int, found: CaseRuns) -> str:
    ours = found.ours[turn] if turn < len(found.ours) else None
    theirs = found.theirs[turn] if turn < len(found.theirs) else None
    ratio = f"{ours.messages_s / theirs.messages_s:.2f}" if ours and theirs else "–"
    return f"{case.name:<8} {turn + 1:>3}  {run_words(ours)}  |{run_words(theirs)}  | {ratio:>5}"


def rounds_table(found: list[CaseRuns]) -> str:
    """Every run.

    `load` is the share of a core that the load program took: near 100 % it is the load that was measured. `others` is
    how many cores other processes took.
    """
    lines = [f"{'':<14}{'LakeMQ':<{len(COLUMNS)}}  |C server", f"{'case round':<14}{COLUMNS}  |{COLUMNS}  | ratio"]
    for one in found:
        lines += [round_line(one.case, turn, one) for turn in range(max(len(one.ours), len(one.theirs)))]
        if one.failure:
            lines.append(f"{one.case.name:<8} LakeMQ failed: {one.failure}")
    return "\n".join(lines)


def median(runs: list[Run], name: str = "messages_s") -> float:
    return statistics.median(getattr(run, name) for run in runs)


def best(runs: list[Run]) -> float:
    return max(run.messages_s for run in runs)


def summary_table(found: list[CaseRuns]) -> str:
    head = f"{'case':<8} {'load':<32} {'LakeMQ best':>12} {'median':>11} {'C best':>12} {'median':>11}"
    lines = [f"{head} {'medians':>8} {'bests':>6} {'rounds':>7} {'CPU us a message':>19} {'others':>7}"]
    for one in found:
        words = f"{one.case.name:<8} {one.case.title:<32}"
        for runs in (one.ours, one.theirs):
            words += f" {best(runs):>12,.0f} {median(runs):>11,.0f}" if runs else f" {'–':>12} {'':>11}"
        if one.ours and one.theirs:
            pairs = [a.messages_s / b.messages_s for a, b in zip(one.ours, one.theirs, strict=False)]
            words += f" {median(one.ours) / median(one.theirs):>8.2f} {best(one.ours) / best(one.theirs):>6.2f}"
            words += f" {statistics.median(pairs):>7.2f}"
            words += f" {median(one.ours, 'cpu_us'):>8.2f} to {median(one.theirs, 'cpu_us'):>7.2f} {one.others:>7.2f}"
        lines.append(words)
    return "\n".join(lines)


def result_of(one: CaseRuns) -> Result:
    """The medians, and whether they meet the aim; not told where the machine was too busy. The broker was measured."""
    case = one.case
    what, unit = ("mb_s", "MB/s") if case.mode == "fetch" else ("messages_s", "messages/s")
    ours, theirs = median(one.ours, what), median(one.theirs, what)
    ratio, met = ours / theirs, None
    if case.ratio_min is not None:
        met = ratio >= case.ratio_min
    elif case.rate_min is not None or case.mb_min is not None:
        met = ours >= (case.rate_min or case.mb_min or 0)
    name, met = f"{case.name}: {case.title}", met if one.is_reliable else None
    return Result(name, round(ours), unit, round(theirs), round(ratio, 3), case.aim, met)


def aim_lines(found: list[CaseRuns]) -> list[str]:
    lines = []
    for one in found:
        if not one.case.aim:
            continue
        if not one.ours:
            lines.append(f"aim {one.case.name}: {one.case.title}: {one.case.aim} — not measured")
            continue
        result = result_of(one)
        figures = f"{result.value:,.0f} {result.unit} at the median, {result.ratio:.2f} of the C server"
        verdict = "met" if result.met else "MISSED"
        if result.met is None:
            verdict = f"NOT DECIDED, other processes used {one.others:.2f} of {os.cpu_count()} cores"
        lines.append(f"aim {result.name}: {result.aim} — {verdict} ({figures})")
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under 25 seconds: short runs, two rounds, no `ack`")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--cases", help="of a, b, c, d, a-write, a-flush, …, fetch, ack (default: all)")
    parser.add_argument("--rounds", type=int, help="of each case")
    parser.add_argument("--seconds", type=float, help="measured in each run, after a warm-up of a quarter of it")
    parser.add_argument("--directory", default=".", help="on the disk to work on; needs 8 GB (default: here)")
    parser.add_argument("--free", action="store_true", help="let the scheduler place load and servers")
    parser.add_argument("--only-baseline", action="store_true", help="measure the C server alone")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the servers end, too
    seconds = options.seconds or (0.3 if options.quick else 1.0)
    cases = cases_named(options.cases or ("a,b,c,d,fetch" if options.quick else "a,b,c,d,fetch,ack"))
    if options.free:
        CORES.let_free()
    directory = Path(tempfile.mkdtemp(prefix="lakemq-bench-", dir=options.directory)).resolve()
    memory = None if options.quick else PageCache(directory, say)
    bench = Bench(
        directory,
        seconds,
        warmup=seconds / 4,
        rounds=options.rounds or (2 if options.quick else 5),
        fetch_count=15_000 if options.quick else 50_000,
        memory=memory,
        with_broker=not options.only_baseline,
    )
    try:
        compile_programs(directory)
        found = bench.run_cases(cases)
    finally:
        bench.stop()
        if memory is not None:
            memory.close()
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        report([result_of(one) for one in found if one.ours], as_json=True)
    else:
        print("\n".join([rounds_table(found), "", summary_table(found), "", *aim_lines(found)]))
    is_measured = all(one.ours and not one.failure for one in found) or options.only_baseline
    return 0 if is_measured else 1


if __name__ == "__main__":
    sys.exit(main())

"""bench/broker.py measures what it says: its C server and its load against LakeMQ's own codec.

Run as a program, this file is a stand-in for the broker: in memory, slow, one thread a connection, and able to lie.
"""

import json
import os
import shutil
import socketserver
import sys
import threading
from pathlib import Path

import pytest

from lakemq import record
from lakemq.wire.commands import decode_request, encode_response
from lakemq.wire.consume import (
    CommitAck,
    CommitAckAck,
    CommitAckIndex,
    CommitAckIndexAck,
    FetchPartitionMessage,
    FetchPartitionMessageAck,
    FetchTopicMessage,
    FetchTopicMessageAck,
    PartitionCode,
    PartitionMessages,
    TopicCodes,
    TopicMessages,
    TopicPartitionMessages,
)
from lakemq.wire.dialect import Dialect
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, ProduceMessageAck, ProduceResult, TopicProduceResults
from lakemq.wire.session import (
    AddConnection,
    AddConnectionAck,
    AddConsumer,
    AddConsumerAck,
    AddProducer,
    AddProducerAck,
    TopicConsumer,
    TopicProducer,
)

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # as it is when a benchmark is run: they import `measure`
import broker as bench  # noqa: E402

sys.modules["bench_broker"] = sys.modules.pop("broker")  # tests/broker is another

sys.path.remove(str(BENCH))  # it has a `storage` and a `wire`, too

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

NOW_MS = 1_800_000_000_000


class StandIn:
    """Topics as lists of messages; a partition is lent until its messages are acked."""

    def __init__(self, lie: str) -> None:
        self.lie = lie
        self.lock = threading.Lock()
        self.messages: dict[tuple[str, int], list[bytes]] = {}
        self.next_index: dict[tuple[str, int], int] = {}
        self.acked: dict[tuple[str, int], int] = {}
        self.lent: set[tuple[str, int]] = set()

    def answer(self, command):
        match command:
            case AddConnection():
                return AddConnectionAck("1")
            case AddProducer(topics):
                return AddProducerAck(tuple(TopicProducer(topic, "1") for topic in topics))
            case AddConsumer(topics):
                return AddConsumerAck(tuple(TopicConsumer(topic, "1") for topic in topics))
            case ProduceMessage(topics):
                return ProduceMessageAck(tuple(self.store(entry) for entry in topics))
            case FetchPartitionMessage(topics):
                return FetchPartitionMessageAck(tuple(self.fetch(entry) for entry in topics))
            case FetchTopicMessage(topics):
                return FetchTopicMessageAck(tuple(self.lend(entry) for entry in topics))
            case CommitAck(topics):
                return CommitAckAck(tuple(self.ack(entry) for entry in topics))
            case CommitAckIndex(topics):
                return CommitAckIndexAck(tuple(self.rewind(entry) for entry in topics))
        raise AssertionError(command)

    def store(self, entry):
        block = entry.messages
        data = bytearray(block.joined())
        found = record.scan(data, 0, len(data), block.count)
        key = (entry.topic, found.partition)
        first = self.next_index.get(key, 0)
        self.next_index[key] = record.stamp(data, 0, block.count, found.partition, first, 1, NOW_MS)
        results, at = [], 0
        for _ in range(block.count):
            fields, end = record.read_fields(data, at)
            self.messages.setdefault(key, []).append(bytes(data[at:end]))
            results.append(ProduceResult(found.partition, fields.index, fields.send_time_ms))
            at = end
        if self.lie == "code":
            return TopicProduceResults(entry.topic, 141, (ProduceResult(),) * block.count)
        if self.lie == "index":
            results[-1].index += 1
        if self.lie == "result":
            results.pop()
        return TopicProduceResults(entry.topic, 0, tuple(results))

    def block(self, key, index, count):
        chosen = self.messages.get(key, [])[index : index + count]
        return MessageBlock(len(chosen), (b"".join(chosen),) if chosen else ())

    def fetch(self, entry):
        (wanted,) = entry.partitions
        index = wanted.index + (self.lie == "gap")
        block = self.block((entry.topic, wanted.partition), index, wanted.count)
        return TopicPartitionMessages(entry.topic, (PartitionMessages(wanted.partition, block),))

    def lend(self, entry):
        for key in self.messages:
            start = self.acked.get(key, 0)
            if key[0] == entry.topic and key not in self.lent and start < len(self.messages[key]):
                self.lent.add(key)
                return TopicMessages(entry.topic, self.block(key, start, entry.count))
        return TopicMessages(entry.topic)

    def ack(self, entry):
        codes = []
        for one in entry.partitions:
            key = (entry.topic, one.partition)
            start, indexes = self.acked.get(key, 0), [ack.index for ack in one.acks]
            is_right = key in self.lent and indexes == list(range(start, start + len(indexes)))
            self.lent.discard(key)
            self.acked[key] = start + len(indexes)
            codes.append(PartitionCode(one.partition, 0 if is_right else 140))
        return TopicCodes(entry.topic, tuple(codes))

    def rewind(self, entry):
        assert not self.lent, "the load left messages without an ack"
        self.acked.clear()
        return TopicCodes(entry.topic, tuple(PartitionCode(one.partition, 0) for one in entry.partitions))


def serve(ready: str, lie: str) -> None:
    stand_in = StandIn(lie)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while len(head := self.rfile.read(4)) == 4:
                frame = bytearray(head + self.rfile.read(int.from_bytes(head, "big") - 4))
                header, command = decode_request(frame, Dialect.DOCUMENTED)
                with stand_in.lock:
                    ack = stand_in.answer(command)
                parts = encode_response(ack, header, dialect=Dialect.DOCUMENTED, send_time_ms=NOW_MS)
                answer = bytearray(b"".join(parts))
                if lie == "status" and isinstance(command, ProduceMessage):
                    answer[23] = 4
                if lie == "id" and isinstance(command, ProduceMessage):
                    answer[13] ^= 1
                self.wfile.write(answer)

    socketserver.ThreadingTCPServer.daemon_threads = True
    socketserver.ThreadingTCPServer.request_queue_size = 128
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        said = {"port": server.server_address[1], "admin_port": 0, "pid": os.getpid()}
        Path(ready + ".new").write_text(json.dumps(said))
        os.replace(ready + ".new", ready)
        server.serve_forever()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("programs")
    bench.compile_programs(directory)
    return directory


@pytest.fixture
def directory(programs, tmp_path):
    for program in programs.iterdir():
        (tmp_path / program.name).symlink_to(program)
    return tmp_path


@pytest.fixture
def stand_in(monkeypatch):
    """From now on the broker is the stand-in, which lies in the way it is told."""

    def use(lie: str = "") -> None:
        monkeypatch.setattr(bench, "broker_command", lambda data, ready: [sys.executable, __file__, str(ready), lie])

    return use


def short(directory):
    return bench.Bench(directory, seconds=0.3, warmup=0.02, rounds=2, fetch_count=3000)


def test_the_c_server_speaks_the_protocol(directory):
    server = bench.start_baseline(directory, fetch_count=300)
    try:
        bench.check_produce(server)
        bench.check_fetch(server, 300)
        with (server.directory / "journal").open("rb") as journal:
            stored, _ = record.read_fields(journal.read(4096), 0)
        assert (stored.partition, stored.index, stored.term) == (bench.PARTITIONS - 1, 0, 1)
        assert stored.body == bench.body(0)
        assert 0 <= stored.store_time_ms < 60_000
    finally:
        server.stop()


def test_the_c_server_checks_bodies(directory):
    server = bench.start_baseline(directory)
    damaged = bytearray(bench.message(0))
    damaged[100] ^= 1
    try:
        with bench.session(server.port) as peer, pytest.raises(bench.BenchError, match="closed"):
            peer.ask(bench.produce([bytes(damaged)], bench.Qos.WRITE, bench.TOPIC))
    finally:
        server.stop()


FEW = [case for case in bench.CASES if case.name in ("a-write", "d-flush", "fetch")]  # one of each kind, to be quick


def test_every_kind_of_case_is_measured_on_both_sides(directory, stand_in):
    stand_in()
    run = short(directory)
    try:
        found = run.run_cases(FEW)
    finally:
        run.stop()
    assert [one.case for one in found] == FEW
    for one in found:
        assert not one.failure
        assert len(one.ours) == len(one.theirs) == 2
        assert all(1 < each.p50_us <= each.p99_us <= each.p999_us for each in one.ours + one.theirs)
        result = bench.result_of(one)
        assert result.ratio == pytest.approx(result.value / result.baseline, abs=0.01)
    assert "a-write" in bench.rounds_table(found)
    assert "a-write" in bench.summary_table(found)
    assert len(bench.aim_lines(found)) >= 1


def test_a_busy_machine_decides_nothing():
    case = bench.Case("x", "x", "produce", 1, 1, ratio_min=0.5)
    slow, fast = (bench.Run(rate, 1, 1, 1, 1, 0.5, 1, others=0.1) for rate in (100, 1000))
    busy = bench.Run(100, 1, 1, 1, 1, 0.5, 1, others=0.9)
    assert "MISSED" in bench.aim_lines([bench.CaseRuns(case, [slow], [fast])])[0]
    assert "met" in bench.aim_lines([bench.CaseRuns(case, [fast], [slow])])[0]
    assert "NOT DECIDED" in bench.aim_lines([bench.CaseRuns(case, [fast], [busy])])[0]
    assert "not measured" in bench.aim_lines([bench.CaseRuns(case, [], [fast])])[0]


@pytest.mark.parametrize(
    ("lie", "case", "complaint"),
    [
        ("status", "a-write", "status: 4"),
        ("code", "a-write", "code: 141"),
        ("index", "c-write", "last index"),
        ("result", "c-write", "number of results: 99"),
        ("id", "a-write", "nothing that was asked"),
        ("gap", "fetch", "next index"),
    ],
)
def test_a_wrong_reply_is_an_error(directory, stand_in, lie, case, complaint):
    stand_in(lie)
    server = bench.start_broker(directory)
    (chosen,) = bench.cases_named(case)
    try:
        if case == "fetch":
            bench.load(directory, server, bench.FILL, requests=3)
        with pytest.raises(bench.BenchError, match=complaint):
            bench.load(directory, server, chosen, seconds=0.1, warmup=0, end=300)
    finally:
        server.stop()


def test_a_broker_that_does_not_start_is_told(directory, monkeypatch):
    monkeypatch.setattr(bench, "broker_command", lambda data, ready: [sys.executable, "-c", "raise SystemExit('no')"])
    with pytest.raises(bench.BenchError, match="status 1"):
        bench.start_broker(directory)


if __name__ == "__main__":
    serve(*sys.argv[1:3])

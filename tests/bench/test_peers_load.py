"""bench/peers: the load program counts what LakeMQ stored and delivered, and tells what it was not given."""

import importlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # as it is when the benchmark is run
try:
    names = ("model", "drive", "wire_jmq4", "lakemq_peer")
    model, drive, wire_jmq4, lakemq_peer = (importlib.import_module(f"peers.{name}") for name in names)
finally:
    sys.path.remove(str(BENCH))  # it has a `broker`, a `storage` and a `wire`, too

Load, PeerError = model.Load, model.PeerError
CPUS = sorted(os.sched_getaffinity(0))
RATE = 200

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """What is compiled goes with the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    peer = lakemq_peer.LakeMQ()
    running = peer.start(tmp_path_factory.mktemp("lakemq"), model.Durability.CACHE, CPUS)
    try:
        peer.create_topics(running, ["stored", "batches", "lent", "first", "second", "third"], 2)
        peer.create_topics(running, ["timed", "fanned", "late"], 1)
        yield running
    finally:
        running.stop()


def run(server, load, topic, seconds=1.0, warmup=0.1, **more):
    frames = wire_jmq4.frames(load, topic)
    return drive.drive_raw(frames, load, server.port, seconds, warmup, CPUS, **more)


def run_latency(server, load, topic):
    consumers = wire_jmq4.frames(replace(load, mode="consume"), topic)
    return run(server, load, topic, consumer_frames=consumers)


def test_it_compiles_without_a_warning(tmp_path):
    sources = [str(path) for path in sorted((BENCH / "peers").glob("load*.c"))]
    command = ["cc", *drive.FLAGS, "-Werror", "-o", str(tmp_path / "load"), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_count_of_requests_is_stored_and_read_back_to_the_last(server):
    load = Load("produce", body_bytes=100, connections=2, outstanding=8, partitions=2)
    assert run(server, load, "stored", count=50)["messages_all"] == 100
    got = run(server, Load("consume", body_bytes=100, connections=2, partitions=2), "stored", total=100)
    assert (got["messages_all"], got["errors"]) == (100, 0)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_messages_of_batches_are_counted_and_read_over_and_over(server, compression):
    load = Load("produce", body_bytes=100, batch=10, connections=2, partitions=2, compression=compression)
    topic = f"batches-{compression}"
    lakemq_peer.LakeMQ().create_topics(server, [topic], 2)
    assert run(server, load, topic, count=5)["messages_all"] == 100
    got = run(server, Load("consume", connections=2, partitions=2, batch=10), topic, seconds=0.3, end=50)
    assert got["messages_all"] > 1_000
    assert got["messages_all"] % 50 == 0
    assert 0 < got["p50_us"] <= got["p99_us"] <= got["p999_us"]


def test_what_is_lent_is_acked_and_lent_once(server):
    run(server, Load("produce", body_bytes=100, connections=2, partitions=2), "lent", count=100)
    load = Load("consume-acks", connections=2, partitions=2)
    assert run(server, load, "lent", seconds=0.7)["messages_all"] == 200
    assert run(server, load, "lent", seconds=0.7)["messages_all"] == 0


def test_requests_go_round_over_topics(server):
    load, topics = Load("produce", body_bytes=100), ["first", "other", "third"]
    peer = lakemq_peer.LakeMQ()
    frames = replace(
        peer.frames(load, topics[0]),
        setup=peer.setup_over(load, topics),
        requests=tuple(peer.frames(load, topic).requests[0] for topic in topics),
    )
    drive.drive(frames, load, server.port, 1, 0, CPUS, count=30, is_rotating=True)
    for topic in topics:
        got = run(server, Load("consume"), topic, seconds=0.2, warmup=0, total=11)
        assert got["messages_all"] == 10


def test_latency_has_every_message_of_the_rate(server):
    got = run_latency(server, Load("latency", body_bytes=100, rate=RATE), "timed")
    assert got["messages"] == RATE
    assert 0 < got["p50_us"] <= got["p99_us"] <= got["p999_us"]
    assert got["late_us_p99"] >= 0


def test_every_group_gets_every_message(server):
    got = run_latency(server, Load("latency", body_bytes=100, rate=RATE, groups=3), "fanned")
    assert got["messages"] == 3 * RATE


def test_latency_of_a_topic_that_is_not_empty_is_refused(server):
    run(server, Load("produce", body_bytes=100), "late", count=1)
    with pytest.raises(PeerError, match="the topic was not empty"):
        run_latency(server, Load("latency", body_bytes=100, rate=RATE), "late")


def test_a_topic_that_cannot_be_is_told(server):
    with pytest.raises(PeerError, match="load: status"):
        run(server, Load("produce"), "no such topic")


def test_a_partition_that_is_not_there_is_told(server):
    with pytest.raises(PeerError, match="load: code"):
        run(server, Load("produce", connections=3, partitions=3), "stored", count=1)


def test_an_answer_that_is_none_is_told():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_nonsense, args=(listener,))
        thread.start()
        frames = wire_jmq4.frames(Load("produce"), "stored")
        with pytest.raises(PeerError, match="not a response"):
            drive.drive(frames, Load("produce"), listener.getsockname()[1], 1, 0, CPUS)
        thread.join(10)


def answer_nonsense(listener):
    connection, _ = listener.accept()
    with connection:
        connection.recv(10_000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

"""Bodies that nobody could open, or that fit no message: told at `send`, and to nobody else."""

import os

import pytest

import lakemq
from client.fake_broker import FakeCluster
from client.fix_client import fake_client
from lakemq.compression import EXPANDED_BYTES_MAX
from lakemq.errors import BadParameterError

MIB = 1 << 20


@pytest.fixture
def cluster():
    return FakeCluster(partitions=1)


@pytest.fixture
def mq(cluster):
    with fake_client(cluster, compression="lz4") as mq:
        yield mq


def test_a_body_that_no_consumer_could_open_is_refused_with_the_limit_named(mq, cluster):
    body = bytes(EXPANDED_BYTES_MAX + 1)
    with pytest.raises(BadParameterError, match="64 MiB"):
        mq.send("orders", body)
    with pytest.raises(BadParameterError, match="64 MiB"):
        mq.send_soon("orders", body)
    report = mq.send_many("orders", [b"before", body, b"after"])
    assert [str(error).count("64 MiB") for _, error in report.failed] == [1]
    assert cluster.bodies() == [b"before", b"after"]


def test_what_is_as_large_as_may_be_comes_back(mq):
    body = bytes(EXPANDED_BYTES_MAX)
    mq.send("orders", body)
    with mq.consumer("orders", group="g") as consumer:
        (message,) = consumer.receive(10)
        assert len(message.body) == EXPANDED_BYTES_MAX


def test_many_messages_together_are_never_too_large_to_be_opened(cluster):
    """Two batches in the place of one that would expand beyond what consumers open."""
    with fake_client(cluster, compression="lz4", batch_bytes=40 * MIB) as mq:
        report = mq.send_many("orders", [bytes(30 * MIB) + b"%d" % nth for nth in range(3)])
        report.raise_if_failed()
        got = []
        with mq.consumer("orders", group="g") as consumer:
            while len(got) < 3:
                got += [message.body[-1:] for message in consumer.receive(10)]
        assert consumer.damaged == 0
    assert got == [b"0", b"1", b"2"]


def test_many_messages_that_cannot_be_compressed_fit_their_carriers(mq, cluster):
    """One that filled a request just beyond 4 MiB made all of them fail."""
    bodies = [os.urandom(200 << 10) for _ in range(30)]
    report = mq.send_many("orders", [lakemq.Message(body, partition=0) for body in bodies])
    report.raise_if_failed()
    assert cluster.bodies() == bodies


def test_one_that_is_too_large_for_a_message_fails_alone(cluster):
    with fake_client(cluster, compression="lz4", batch_bytes=16 * MIB) as mq:
        report = mq.send_many("orders", [b"before", os.urandom(5 * MIB), b"after"])
    assert [str(error).count("4194304 are allowed") for _, error in report.failed] == [1]
    assert cluster.bodies() == [b"before", b"after"]

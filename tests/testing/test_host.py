"""What a simulated broker must find again at its next start, and what it may find."""

import errno
from random import Random

import pytest

from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import AdminAsked
from lakemq.storage.config import StorageConfig
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import SimDisk
from lakemq.testing.facts import ViolationError
from lakemq.testing.history import History
from lakemq.testing.host import Host

FULL = OSError(errno.ENOSPC, "planned")
SMALL = StorageConfig(segment_bytes=64 << 10, record_bytes_max=16 << 10, unsynced_bytes_max=64 << 10)
ALL = 1 << 20  # bytes: the write fails after all of it


def make_host():
    disk = SimDisk()
    host = Host(Random(1), SimClock(), lambda *later: None, disk, History(), BrokerConfig(), SMALL)
    host.start()
    ask(host, "create_topic", name="orders", partitions=1)
    return host, disk


def ask(host, action, **arguments):
    host.act("ask", lambda engine: engine.handle(AdminAsked(action, arguments, lambda result, error: None)))
    host.act("turn", lambda engine: engine.end_turn())


def topics(host):
    return set(host.engine.broker.ledger.metadata.topics)


def test_a_turn_that_is_refused_is_wiped_and_not_found_after_a_kill():
    host, disk = make_host()
    disk.fail("write", FULL, path_contains="journal/", wrote=ALL)
    ask(host, "create_topic", name="refused", partitions=1)
    host.die("kill")
    host.start()
    assert topics(host) == {"orders"}


@pytest.mark.parametrize("wrote", [0, ALL])
def test_a_turn_may_be_found_if_the_broker_died_before_it_could_wipe_it(wrote):
    host, disk = make_host()
    disk.fail("write", FULL, path_contains="journal/", wrote=wrote)
    disk.crash_after = disk.crash_points + 1
    ask(host, "create_topic", name="unknown", partitions=1)
    assert host.engine is None, "it died"
    host.start()
    assert topics(host) == ({"orders", "unknown"} if wrote else {"orders"})


def test_what_was_written_must_be_found():
    host, disk = make_host()
    before = disk.clone()
    ask(host, "create_topic", name="written", partitions=1)
    host.die("kill")
    host._disk = before
    with pytest.raises(ViolationError, match="I05"):
        host.start()

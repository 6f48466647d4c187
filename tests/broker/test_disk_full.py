"""A full disk: refused with 109, said once in the log and for as long as it lasts to operators, and over by itself."""

import pytest

from broker.fix_broker import SMALL, make_broker

REFUSED = 109


@pytest.fixture
def life():
    return make_broker(partitions=1)


def fill(life):
    """Not a byte left, and the last segment used up."""
    life.disk.capacity_bytes = 1 << 40
    life.disk.capacity_bytes -= life.disk.free_bytes()
    peer = life.peer()
    codes = []
    while not codes or codes[-1] == 0:
        codes.append(peer.produce(b"x" * 10_000)[0])
    assert codes[-1] == REFUSED
    return peer


def said(life, word):
    return [text for _, text in life.engine.notes if word in text]


def test_F18_a_full_disk_is_told_in_the_log_at_its_beginning_and_at_its_end(life):
    peer = fill(life)
    for _ in range(10):
        life.pass_ms(20)
        assert peer.produce(b"x" * 10_000)[0] == REFUSED
    (line,) = said(life, "is full")
    assert line.startswith("the disk of memory is full: 1.0 MiB are needed, 0.0 MiB are free: ")
    life.disk.capacity_bytes = None
    assert peer.produce(b"x" * 10_000)[0] == 0
    life.pass_ms(20)
    assert len(said(life, "has room again")) == 1
    life.pass_ms(20)
    assert len(said(life, "is full") + said(life, "has room again")) == 2


def test_F18_operators_are_told_for_as_long_as_it_lasts(life):
    assert life.ask("show_broker")["disk_full"] is None
    peer = fill(life)
    assert "the disk of memory is full" in life.ask("show_broker")["disk_full"]
    assert peer.produce(b"small")[0] in (0, REFUSED)
    assert life.ask("show_broker")["disk_full"], "what fits the old segment is no room for a new one"


def test_F18_room_is_seen_though_nobody_sends(life):
    """A load balancer that keeps messages away while it is full would never let it find out."""
    fill(life)
    life.pass_ms(20)
    life.disk.capacity_bytes += SMALL.segment_bytes - 1
    life.pass_ms(2000)
    assert life.ask("show_broker")["disk_full"]
    life.disk.capacity_bytes += 1
    life.pass_ms(2000)
    assert life.ask("show_broker")["disk_full"] is None
    assert len(said(life, "has room again after")) == 1

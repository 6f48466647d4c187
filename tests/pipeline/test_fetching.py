"""Ranges fetched from a broker: each offset once, patience with a broker that is away, a clear end if it stays away."""

import pytest

pytest.importorskip("pyarrow", reason="needs the extra spark")

import pyarrow as pa

import lakemq
from fix_live import start_broker
from lakemq.pipeline.columns import Block
from lakemq.pipeline.door import Door, door
from lakemq.pipeline.errors import PipelineError
from lakemq.pipeline.fetching import open_range, read_range
from lakemq.pipeline.options import Server
from lakemq.pipeline.planning import Range

COUNT = 30_000


@pytest.fixture
def filled(tmp_path):
    """A broker with one partition of many messages."""
    broker = start_broker(tmp_path)
    url = f"lakemq://127.0.0.1:{broker.port}"
    with lakemq.connect(url, app="shop", compression="none") as mq:
        for number in range(COUNT):
            mq.send_soon("orders", b"%d" % number + b" " * 800, partition=0)  # several answers, whoever asks
        mq.flush()
    yield broker, url
    if broker.is_running:
        broker.stop()


def offsets(batches):
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.live
def test_a_range_has_each_offset_once_wherever_it_is_cut(filled):
    _, url = filled
    server = Server(url, timeout_ms=5000)
    types = pa.schema([pa.field("offset", pa.int64(), nullable=False)])
    for first, end in ((0, COUNT), (777, 12_345), (COUNT - 1, COUNT), (5, 6)):
        batches = list(read_range(server, Range("orders", 0, first, end), types))
        assert offsets(batches) == list(range(first, end))
        assert all(batch.schema == types for batch in batches)
    door(server).close()


@pytest.mark.live
def test_a_range_is_whole_also_where_its_blocks_are_opened_in_pieces(filled, monkeypatch):
    _, url = filled
    with lakemq.connect(url, app="shop", compression="zstd") as mq:
        for number in range(5000):
            mq.send_soon("bills", b"%d" % number + b" " * 500, partition=0)
        mq.flush()
    whole, server = Block.opened, Server(url, timeout_ms=5000)
    monkeypatch.setattr(Block, "opened", lambda self: whole(self, bytes_max=100_000))
    for first, end in ((0, 5000), (777, 4321), (4999, 5000)):
        pieces = list(open_range(server, Range("bills", 0, first, end)))
        assert [index for one in pieces for index in one.rows["index"].tolist()] == list(range(first, end))
        assert all(len(one.rows) for one in pieces)
        assert end - first < 1000 or len(pieces) > 3
    door(server).close()


@pytest.mark.live
def test_a_broker_that_goes_in_the_middle_of_a_range_is_one_clear_error(filled):
    broker, url = filled
    blocks = open_range(Server(url, timeout_ms=1500), Range("orders", 0, 0, COUNT))
    next(blocks)
    broker.kill()
    with pytest.raises(PipelineError, match=r"no broker at .* Start one with `lakemq dev`"):
        for _ in blocks:
            pass


@pytest.mark.live
def test_nobody_waits_for_ever_for_messages_that_are_not_handed_out(filled):
    _, url = filled
    waits = Door(Server(url, timeout_ms=300))
    beyond = waits.ask("orders", 0, COUNT, COUNT + 10)
    with pytest.raises((PipelineError, lakemq.errors.LakeMQError)):
        waits.take(beyond)
    waits.close()

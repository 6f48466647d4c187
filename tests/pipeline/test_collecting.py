"""What a worker imported is not walked over by every collection."""

import gc

import pytest

from lakemq.pipeline import collecting


def test_what_is_there_is_spared_once(monkeypatch):
    monkeypatch.setattr(collecting, "_is_spared", False)
    before = gc.get_freeze_count()
    try:
        collecting.spare_imports()
        spared = gc.get_freeze_count()
        assert spared > before + 10_000
        held = [[] for _ in range(100)]
        collecting.spare_imports()
        assert gc.get_freeze_count() == spared
        del held
    finally:
        gc.unfreeze()  # other tests look for leaks


def test_the_processes_that_plan_a_query_are_spared_too(monkeypatch):
    pytest.importorskip("pyspark", reason="needs the extra spark")
    from pyspark.sql.types import StructType

    from lakemq.pipeline.options import read_source
    from lakemq.pipeline.source import LakeMQSource, Reader

    spared = []
    monkeypatch.setattr(collecting, "spare_imports", lambda: spared.append(True))
    source = LakeMQSource({"servers": "127.0.0.1:1", "subscribe": "orders"})
    source.schema()
    assert len(spared) == 1
    monkeypatch.setattr("lakemq.pipeline.reads.Reads", NoTopics)
    assert Reader(read_source(source.options), StructType()).partitions() == []
    assert len(spared) == 2


class NoTopics:
    """A broker without topics."""

    def __init__(self, options):
        pass

    def topics(self):
        return {}

    def bounds(self, topics):
        return {}, {}

    def available(self, ranges):
        return ranges

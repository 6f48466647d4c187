"""Retention and the lake: nothing is dropped before it is archived, and what was dropped is read from the lake."""

import json
import time
from random import Random

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.errors import PySparkException

from fix_live import start_broker
from lakemq.pipeline.archiving import ARCHIVE_APP, Archive, ArchiveSettings
from lakemq.pipeline.lake import Lake, verify
from lakemq.pipeline.options import Server
from pipeline.conftest import Topics

SMALL = """
[broker]
retention_every_ms = "200ms"
[storage]
segment_bytes = "2MiB"
record_bytes_max = "1MiB"
checkpoint_bytes = "256KiB"
[limits]
frame_bytes_max = "1MiB"
[retention]
size_bytes = "1MiB"
"""
COUNT = 10_000
PATIENCE_S = 30


@pytest.fixture
def small(tmp_path):
    """A broker that keeps next to nothing."""
    config = tmp_path / "lakemq.toml"
    config.write_text(SMALL)
    broker = start_broker(tmp_path / "broker", options=("--config", str(config)))
    topics = Topics(broker)
    yield topics
    topics.mq.close()
    broker.stop()


def body_of(number):
    """Nothing that compression could make small."""
    return b"%d " % number + Random(number).randbytes(300).hex().encode()


def first_kept(topics, topic):
    return topics.mq.ranges(topic)[0].first_index


def test_what_is_archived_may_go_and_is_read_from_the_lake_instead(spark, small, tmp_path):
    topic = small.make(partitions=1, is_archived=True)
    small.fill(topic, COUNT, body=body_of, key=lambda n: None)
    time.sleep(1)  # several looks of retention
    assert first_kept(small, topic) == 0, "retention waits for the archive"
    lake = str(tmp_path / "lake")
    Archive(spark, ArchiveSettings(Server(small.url, ARCHIVE_APP), lake)).run()
    small.fill(topic, 100, first=COUNT, body=body_of, key=lambda n: None)
    deadline = time.monotonic() + PATIENCE_S
    while first_kept(small, topic) == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert first_kept(small, topic) > 0, "what is archived goes"
    start = json.dumps({topic: {"0": 0}})
    with pytest.raises(PySparkException, match=r"have left the broker. Read them from the lake with"):
        small.read(spark, subscribe=topic, startingOffsets=start).count()
    both = small.read(spark, subscribe=topic, startingOffsets=start, failOnDataLoss="archive", lake=lake)
    found = sorted(int(row["value"].split()[0]) for row in both.collect())
    assert found == list(range(COUNT + 100))
    assert verify(Lake.open(lake)).problems == []

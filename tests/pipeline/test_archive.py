"""The archive: every message of an archived topic is in the lake once, whatever is killed and whenever."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyarrow as pa

from lakemq.pipeline import schema
from lakemq.pipeline.archive_plan import archived_status, told_positions
from lakemq.pipeline.archiving import ARCHIVE_APP, Archive, ArchiveSettings
from lakemq.pipeline.errors import PipelineError
from lakemq.pipeline.lake import ArchiveRunningError, Lake, OtherClusterError, verify
from lakemq.pipeline.lake.upkeep import UpkeepPolicy
from lakemq.pipeline.options import Server

RUN = Path(__file__).parent / "archive_run.py"


def server_of(topics):
    return Server(topics.url, ARCHIVE_APP)


def archive(spark, topics, lake, names, **settings):
    """One run up to now, of those topics."""
    return Archive(spark, ArchiveSettings(server_of(topics), str(lake), tuple(names), **settings)).run()


def check(topics, lake, topic):
    """The lake is right in itself, and as far as the broker was told of that topic."""
    opened = Lake.open(str(lake))
    number = number_of(topics, topic)
    told = {key: at for key, at in told_positions(server_of(topics)).items() if key.topic_id == number}
    report = verify(opened, told)
    assert [str(problem) for problem in report.problems] == []
    return opened


def number_of(topics, topic):
    return {one["name"]: one["number"] for one in topics.mq.inspect("cluster")["topics"]}[topic]


def bodies(spark, lake, topic):
    files = lake.files("messages", topic=topic)
    rows = spark.read.option("basePath", lake.base_uri("messages")).parquet(*files).select("value", "crc").collect()
    return sorted(int(row["value"]) for row in rows)


def test_a_run_copies_all_there_is_and_the_next_only_what_is_new(spark, topics, tmp_path):
    topic = topics.make(partitions=3)
    topics.fill(topic, 2000)
    assert archive(spark, topics, tmp_path, [topic]).messages == 2000
    topics.fill(topic, 500, first=2000)
    assert archive(spark, topics, tmp_path, [topic], offsets_max=200).messages == 500
    assert archive(spark, topics, tmp_path, [topic]).messages == 0
    assert bodies(spark, check(topics, tmp_path, topic), topic) == list(range(2500))


def test_many_small_batches_leave_few_files_and_every_message_once(spark, topics, tmp_path):
    """As with a short trigger; before, there were as many files as batches."""
    topic = topics.make(partitions=1)
    topics.fill(topic, 2400)
    progress = archive(spark, topics, tmp_path, [topic], offsets_max=100)
    assert (progress.messages, progress.batches) == (2400, 24)
    lake = check(topics, tmp_path, topic)
    for table in ("messages", "meta"):
        assert len(lake.files(table, topic=topic)) <= 12
    assert progress.compacted >= 32
    assert bodies(spark, lake, topic) == list(range(2400))
    untouched = archive(spark, topics, tmp_path / "b", [topic], offsets_max=400, upkeep=UpkeepPolicy(0, 0))
    assert (untouched.compacted, untouched.batches) == (0, 6)


def test_archived_topics_are_found_by_their_mark_and_the_broker_is_told(spark, topics, tmp_path):
    topic = topics.make(partitions=2, is_archived=True)
    topics.fill(topic, 300)
    progress = Archive(spark, ArchiveSettings(server_of(topics), str(tmp_path))).run()
    assert progress.messages == 300
    assert progress.events_offsets > 0, "what happened to the messages is archived, too"
    rows = [row for row in archived_status(check(topics, tmp_path, topic), server_of(topics)) if row["topic"] == topic]
    assert sum(row["archived"] for row in rows) == 300
    assert [row["behind"] for row in rows] == [0, 0]
    assert topics.lag(topic, "", app=ARCHIVE_APP) == [0, 0], "the broker may drop what is archived"


def test_a_driver_that_is_killed_loses_nothing_and_doubles_nothing(spark, topics, tmp_path):
    topic = topics.make(partitions=2, is_archived=True)
    topics.fill(topic, 10_000)
    for step, count in (("written", 2), ("committed", 1)):
        done = run_alone(topics, tmp_path, step, count)
        assert done.returncode == -signal.SIGKILL, done.stderr
        check(topics, tmp_path, topic)
    Archive(spark, ArchiveSettings(server_of(topics), str(tmp_path))).run()
    assert bodies(spark, check(topics, tmp_path, topic), topic) == list(range(10_000))


def run_alone(topics, lake, step, count):
    command = [sys.executable, str(RUN), topics.url, str(lake), step, str(count)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_python_workers_that_are_killed_are_replaced_and_nothing_is_doubled(spark, topics, tmp_path):
    topic = topics.make(partitions=2)
    topics.fill(topic, 30_000, body=lambda n: b"%d" % n + b" " * 500)
    killer = Killer()
    killer.start()
    try:
        archive_in_the_end(spark, topics, tmp_path, topic)
    finally:
        killer.stop()
    lake = check(topics, tmp_path, topic)
    assert bodies(spark, lake, topic) == list(range(30_000))
    assert killer.killed >= 1


def archive_in_the_end(spark, topics, lake, topic):
    """Spark runs tasks again by itself, but not the process that plans them: then the job is started again."""
    for _ in range(6):
        try:
            archive(spark, topics, lake, [topic], offsets_max=8000)
            return
        except Exception:
            check(topics, lake, topic)
    archive(spark, topics, lake, [topic])


class Killer(threading.Thread):
    """Kills a Python worker of our own session now and then, three in all."""

    def __init__(self):
        super().__init__(daemon=True)
        self.killed = 0
        self._is_done = threading.Event()

    def run(self):
        while not self._is_done.wait(0.7) and self.killed < 3:
            for pid in workers_of(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1
                    break
                except ProcessLookupError:
                    continue

    def stop(self):
        self._is_done.set()
        self.join()


def workers_of(pid):
    """The tasks' processes: children of `pyspark.daemon`, itself below our JVM."""
    children = {}
    commands = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                commands[int(entry.name)] = (entry / "cmdline").read_bytes()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
            except (OSError, ProcessLookupError):
                continue
    below, found = [pid], []
    while below:
        one = below.pop()
        for child in children.get(one, ()):
            below.append(child)
            if b"pyspark.daemon" in commands.get(child, b"") and b"pyspark.daemon" in commands.get(one, b""):
                found.append(child)
    return found


def test_what_left_the_broker_before_the_archive_came_is_a_gap_row(spark, tmp_path):
    import json

    from lakemq.pipeline.archive_source import write_range
    from lakemq.pipeline.lake import DataFile, Gap, Range
    from lakemq.pipeline.planning import Range as Planned

    lake = Lake.open(str(tmp_path / "lake"), "cluster", create=True)
    row = write_range(
        Server("lakemq://127.0.0.1:1"), str(tmp_path / "lake"), Planned("t", 0, 0, 40, 7), 40
    ).to_pylist()[0]
    files = [DataFile.from_json(text) for text in json.loads(row["files"])]
    lake.commit(files, [Gap("t", 7, 0, 0, 40, "gone")], [Range("t", 7, 0, 0, 40)])
    assert verify(lake).problems == []
    assert verify(lake).gap_offsets == 40


def test_a_second_archive_job_on_the_same_lake_refuses(spark, topics, tmp_path):
    topic = topics.make()
    archive(spark, topics, tmp_path, [topic])
    with Lake.open(str(tmp_path)).lock(), pytest.raises(ArchiveRunningError):
        archive(spark, topics, tmp_path, [topic])


def test_a_lake_of_another_cluster_is_refused(spark, topics, tmp_path):
    Lake.open(str(tmp_path), "somebody else", create=True)
    with pytest.raises(OtherClusterError):
        archive(spark, topics, tmp_path, [topics.make()])


def test_a_topic_that_is_not_there_is_named(spark, topics, tmp_path):
    with pytest.raises(PipelineError, match="there is no topic 'nothing'"):
        archive(spark, topics, tmp_path, ["nothing"])


def test_what_retention_has_dropped_is_read_from_the_lake(spark, topics, tmp_path, monkeypatch):
    from lakemq.pipeline.archived import find_archived, read_archived
    from lakemq.pipeline.planning import Range

    topic = topics.make(partitions=1)
    topics.fill(topic, 100)
    archive(spark, topics, tmp_path, [topic])
    (found,) = find_archived(str(tmp_path), Range(topic, 0, 20, 60), number_of(topics, topic))
    types = pa.schema([schema.SOURCE.field(name) for name in ("offset", "value")])
    rows = [row for batch in read_archived(found, types) for row in batch.to_pylist()]
    assert [int(row["value"]) for row in rows] == list(range(20, 60))

"""Whose lake it is, and what lies where in it."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lakemq.cli.failure import describe
from lakemq.pipeline.lake import (
    EVENTS,
    GAPS,
    MESSAGES,
    META,
    Lake,
    LakeError,
    LakeFormatError,
    LakeNotFoundError,
    OtherClusterError,
)
from lakemq.pipeline.lake.layout import directory_of
from lakemq.pipeline.lake.place import Place
from pipeline.lake.fix_lake import Archive

WEIRD = ["a.b", "%RETRY%app", "a|b", "a/b/c", "%2F", "100%", "-", "=", "a b", "a:b*c?", "[x]{y}", "2025", "null", "é"]


@pytest.mark.parametrize("table", [MESSAGES, META, EVENTS, GAPS])
def test_tables_ask_no_more_of_a_reader_than_delta_1_and_2(archive, table):
    protocol = DeltaTable(archive.path / table).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert not protocol.reader_features
    assert not protocol.writer_features


def test_a_lake_says_its_format_and_its_cluster(archive):
    assert json.loads((archive.path / "_lakemq/format.json").read_text()) == {"format": 1, "cluster": "c1"}
    assert Lake.open(archive.path).cluster == "c1"
    assert [file.name for file in (archive.path / "_lakemq").iterdir() if "format" in file.name] == ["format.json"]


@pytest.mark.parametrize("create", [False, True])
def test_a_lake_of_a_newer_format_is_refused(archive, create):
    (archive.path / "_lakemq/format.json").write_text('{"format": 2, "cluster": "c1"}')
    with pytest.raises(LakeFormatError, match="has format 2") as refused:
        Lake.open(archive.path, "c1", create=create)
    assert "Upgrade LakeMQ" in describe(refused.value)


@pytest.mark.parametrize("mark", ["", "{}", "[]", '{"format": "x", "cluster": "c1"}'])
def test_a_damaged_mark_is_refused(archive, mark):
    (archive.path / "_lakemq/format.json").write_text(mark)
    with pytest.raises(LakeFormatError, match="cannot be understood"):
        Lake.open(archive.path)


@pytest.mark.parametrize("create", [False, True])
def test_a_lake_of_another_cluster_is_refused(archive, create):
    with pytest.raises(OtherClusterError, match="cluster c1, not of c2") as refused:
        Lake.open(archive.path, "c2", create=create)
    assert "lake of its own" in describe(refused.value)


def test_what_is_no_lake_is_not_opened_for_reading(tmp_path):
    with pytest.raises(LakeNotFoundError, match="is not a lake"):
        Lake.open(tmp_path, "c1")
    assert list(tmp_path.iterdir()) == []


def test_opening_again_changes_nothing(archive):
    archive.put(0, 10)
    before = archive.lake.snapshot()
    assert Archive(archive.path).lake.snapshot() == before


@pytest.mark.parametrize("topic", WEIRD)
def test_any_topic_name_finds_its_way_to_disk_and_back(archive, topic):
    archive.put(0, 3, topic=topic)
    archive.put(3, 5, topic=topic)
    archive.put(0, 4, topic="other", topic_id=8)
    assert archive.offsets(topic=topic) == [0, 1, 2, 3, 4]
    directories = sorted((archive.path / MESSAGES).glob("topic=*"))
    assert len(directories) == 2
    # Other readers of Delta find the same files, and the name in the log.
    table = DeltaTable(archive.path / MESSAGES)
    assert sorted(table.file_uris()) == sorted(archive.paths())
    assert set(pa.table(table.get_add_actions(flatten=True))["partition.topic"].to_pylist()) == {topic, "other"}
    assert all(pq.read_metadata(path).num_rows for path in table.file_uris())


@pytest.mark.parametrize("topic", WEIRD)
def test_directories_are_named_as_spark_reads_them(topic):
    name = directory_of(topic, "2025-03-01").removeprefix("topic=").removesuffix("/dt=2025-03-01")
    assert _as_spark_unescapes(name) == topic
    assert not set(name) & set("/*?[]{}:='\"#\\^")


def _as_spark_unescapes(name):
    text, at = "", 0
    while at < len(name):
        if name[at] == "%" and at + 2 < len(name):
            text += chr(int(name[at + 1 : at + 3], 16))
            at += 3
        else:
            text += name[at]
            at += 1
    return text


def test_a_name_that_no_directory_can_have_is_refused():
    with pytest.raises(LakeError, match="cannot be archived"):
        directory_of("%" * 127, "2025-03-01")


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "é"])
def test_a_lake_may_lie_in_any_directory(tmp_path, name):
    archive = Archive(tmp_path / name)
    archive.put(0, 3)
    archive.put(3, 5)
    assert archive.offsets() == [0, 1, 2, 3, 4]
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_directory_that_deltalake_would_take_for_another_is_refused(tmp_path):
    with pytest.raises(LakeError, match="cannot be at"):
        Archive(tmp_path / "100%41")
    assert list(tmp_path.iterdir()) == []


def test_a_place_is_named_as_path_or_uri(tmp_path):
    assert Place.of(tmp_path) == Place.of(f"file://{tmp_path}") == Place.of(f"{tmp_path}/")
    assert Place.of("s3://bucket/lake/", {"k": "v"}).child(MESSAGES).uri == "s3://bucket/lake/messages"
    assert not Place.of("s3://bucket/lake").is_local


def test_credentials_are_not_shown():
    assert "secret" not in repr(Place.of("s3://bucket/lake", {"AWS_SECRET_ACCESS_KEY": "secret"}))

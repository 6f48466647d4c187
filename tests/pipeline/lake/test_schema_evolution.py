"""Tables of an older and of a newer LakeMQ."""

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from lakemq.pipeline.lake import MESSAGES, META, SchemaClashError, compact, erase, verify
from lakemq.pipeline.lake import layout as layout_module
from pipeline.lake.fix_lake import TOPIC, Archive


@pytest.fixture
def older(tmp_path, monkeypatch):
    """A lake from before `tags`, `crc` and `valueBytes` were there."""
    with monkeypatch.context() as patch:
        for table in (MESSAGES, META):
            kept = [field for field in layout_module.SCHEMAS[table] if field.name not in ("tags", "crc", "valueBytes")]
            patch.setitem(layout_module.SCHEMAS, table, pa.schema(kept))
        archive = Archive(tmp_path / "lake")
        archive.put(0, 10)
    return archive


def test_an_older_table_gets_the_new_columns(older):
    assert "tags" not in older.lake.table(MESSAGES).at().schema().names
    archive = Archive(older.path)
    assert "tags" in archive.lake.table(MESSAGES).at().schema().names
    protocol = DeltaTable(archive.path / MESSAGES).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    archive.put(10, 20)
    rows = ds.dataset(archive.paths(), schema=archive.lake.table(MESSAGES).at().columns_in_files()).to_table()
    assert rows.num_rows == 20
    tags = dict(zip(rows["offset"].to_pylist(), rows["tags"].to_pylist(), strict=True))
    assert (tags[5], tags[15]) == (None, ["red", "blue"])
    report = verify(archive.lake)
    assert report.is_whole, report.problems
    assert report.unsummed == 10


def test_columns_are_added_once(older):
    Archive(older.path)
    before = Archive(older.path).lake.snapshot()
    assert Archive(older.path).lake.snapshot() == before


def test_old_and_new_files_are_compacted_together(older):
    archive = Archive(older.path)
    archive.put(10, 20)
    list(compact(archive.lake))
    assert len(archive.paths()) == 1
    tags = {row["offset"]: row["tags"] for row in archive.rows()}
    assert (tags[5], tags[15]) == (None, ["red", "blue"])
    assert verify(archive.lake).is_whole


@pytest.fixture
def newer(archive):
    """A lake whose tables have a column that we do not know, filled by whoever added it."""
    archive.put(0, 10)
    for table in (MESSAGES, META):
        DeltaTable(archive.path / table).alter.add_columns(Field("mood", PrimitiveType("string")))
    archive = Archive(archive.path)
    list(compact(archive.lake, files_min=1))
    return archive


def test_columns_that_we_do_not_know_stay(newer):
    assert newer.rows()[0]["mood"] is None
    assert "mood" in newer.lake.table(MESSAGES).at().schema().names
    newer.put(10, 20)
    list(compact(newer.lake))
    assert all("mood" in row for row in newer.rows())
    assert verify(newer.lake).is_whole


def test_what_is_in_such_a_column_outlives_compaction_and_erasure(newer):
    (path,) = newer.paths()
    file = pq.ParquetFile(path)
    rows = file.read()
    file.close()
    moods = pa.array([f"mood {offset}" for offset in rows["offset"].to_pylist()])
    pq.write_table(rows.set_column(rows.schema.get_field_index("mood"), "mood", moods), path)
    newer.put(10, 20)
    list(compact(newer.lake))
    erase(newer.lake, ["key-1"], TOPIC)
    assert {row["offset"]: row["mood"] for row in newer.rows() if row["offset"] < 12} == {
        **{offset: f"mood {offset}" for offset in (0, 2, 3, 4, 5, 7, 8, 9)},
        10: None,
    }


def test_healing_works_on_newer_tables(newer):
    files, offered = newer.stage(10, 20)
    newer.lake._append(MESSAGES, {offered: [file for file in files if file.table == MESSAGES]}, [offered], {})
    newer.lake.heal()
    assert newer.offsets(META) == list(range(20))


def test_a_column_of_another_type_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        changed = [
            pa.field("offset", pa.string()) if field.name == "offset" else field
            for field in layout_module.SCHEMAS[MESSAGES]
        ]
        patch.setitem(layout_module.SCHEMAS, MESSAGES, pa.schema(changed))
        Archive(tmp_path / "lake")
    with pytest.raises(SchemaClashError, match="column offset is string, and int64 is written here"):
        Archive(tmp_path / "lake")

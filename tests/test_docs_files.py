"""docs/files.md agrees with the code: every layout, every default, and the bytes of its example."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from fix_disk import get
from lakemq import envelope
from lakemq.checksum import crc32
from lakemq.message import Message
from lakemq.storage.config import StorageConfig
from lakemq.storage.index import ENTRY_BYTES, Entry, unpack_entry
from lakemq.storage.journal_record import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC_BYTES,
    RecordHeader,
    RecordType,
    unpack_header,
)
from lakemq.storage.recovery import open_group
from lakemq.storage.state_file import read_copy
from lakemq.storage.sync_policy import ALWAYS
from lakemq.storage.tables import Checkpoint, DamagedRange, PartitionRow, Tables, TermRow
from lakemq.testing.disk import SimDisk

PAGE = (Path(__file__).parent.parent / "docs" / "files.md").read_text(encoding="utf-8")
POSITION = 12345  # of the record that is changed field by field
SIZES = {"BYTE": 1, "BOOLEAN": 1, "SHORT": 2, "INT": 4, "LONG": 8, "16 bytes": 16}


def section(title):
    """The text below a heading, up to the next one of any level."""
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"docs/files.md has no section {title!r}"
    return found.group(1)


def rows(text, columns):
    """The rows of all tables with so many columns, heads and rulers among them."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in cells if len(row) == columns]


def layout(text, columns=5):
    """(offset, size, field, type) of each row that names a field in code."""
    return [
        (int(row[0]), int(row[1]), row[2].strip("`"), row[3])
        for row in rows(text, columns)
        if row[0].isdigit() and row[1].isdigit() and row[2].startswith("`")
    ]


def rows_after(title, line):
    """The text of a section from the line that introduces a table up to the next such line."""
    return re.search(rf"^{re.escape(line)}\n(.*?)(?=^\w[\w ]+:\n|\Z)", section(title), re.DOTALL | re.MULTILINE).group(
        1
    )


RECORD = layout(section("6 Records"))
ENTRY = layout(section("9.1 Entry"))
PARTITION = layout(rows_after("7 The table of a segment", "Partition row:"), 6)
TERM = layout(rows_after("7 The table of a segment", "Term row:"))
DAMAGE = layout(rows_after("7 The table of a segment", "Damage row:"))
CHECKPOINT = layout(section("10 Checkpoint"))
LAYOUTS = {
    "record": (RECORD, 76),
    "entry": (ENTRY, 48),
    "partition": (PARTITION, 26),
    "term": (TERM, 12),
    "damage": (DAMAGE, 16),
    "checkpoint": (CHECKPOINT, 9),
}


def by_row(table):
    return pytest.mark.parametrize(("offset", "size", "name", "kind"), table, ids=[row[2] for row in table])


def all_ones(size, kind):
    """What a field of that type reads as when all its bits are set."""
    if kind == "16 bytes":
        return b"\xff" * size
    return (1 << 8 * size) - 1 if kind.endswith(", unsigned") else -1


# ---- every table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "total"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_fields_of_a_table_follow_each_other_without_a_gap_up_to_its_total(table, total):
    at = 0
    for offset, size, _, kind in table:
        assert offset == at
        assert size == SIZES[kind.removesuffix(", unsigned")]
        at += size
    assert at == total


def test_the_totals_are_those_of_the_code():
    assert (HEADER_BYTES, ENTRY_BYTES) == (76, 48)
    with_one = [
        len(Tables([PartitionRow(0, 0, 0)]).pack()),
        len(Tables(terms=[TermRow(0, 0)]).pack()),
        len(Tables(damage=[DamagedRange(0, 0)]).pack()),
    ]
    assert [size - len(Tables().pack()) for size in with_one] == [26, 12, 16]
    assert len(Checkpoint(0, False, Tables()).pack()) - len(Tables().pack()) == 9


# ---- records -------------------------------------------------------------------------------------------------------


def header_with(offset, size):
    """The header whose bytes are all zero but for magic, version, its CRC, and ones from `offset` on."""
    data = bytearray(HEADER_BYTES)
    data[0:4] = HEADER_BYTES.to_bytes(4, "big")
    data[4:9] = MAGIC_BYTES + bytes([FORMAT_VERSION])
    data[offset : offset + size] = b"\xff" * size
    crc = crc32(POSITION.to_bytes(8, "big"), crc32(data[:72]))
    data[72:76] = crc.to_bytes(4, "big")
    return unpack_header(data, 0, POSITION)


def test_every_field_of_a_record_is_in_the_table_and_in_this_order():
    in_code = list(RecordHeader._fields)
    assert [row[2] for row in RECORD] == [in_code[0], "magic", "version", *in_code[1:], "header_crc"]


@by_row([row for row in RECORD if row[2] not in ("magic", "version", "header_crc")])
def test_a_field_of_a_record_is_where_the_page_says(offset, size, name, kind):
    plain, changed = header_with(0, 0)._asdict(), header_with(offset, size)._asdict()
    assert {each for each in plain if plain[each] != changed[each]} == {name}
    assert changed[name] == all_ones(size, kind)


@by_row([row for row in RECORD if row[2] in ("magic", "version")])
def test_without_its_magic_and_version_a_record_is_none(offset, size, name, kind):
    assert header_with(offset, size) is None


def test_the_types_of_records_are_the_enumeration():
    said = [(int(row[0]), row[1]) for row in rows(section("6.1 Types"), 3) if row[0].isdigit()]
    assert said == [(kind.value, kind.name) for kind in RecordType]


# ---- index entries -------------------------------------------------------------------------------------------------


def entry_with(offset, size):
    data = bytearray(ENTRY_BYTES)
    data[offset : offset + size] = b"\xff" * size
    data[44:48] = crc32(data[:44]).to_bytes(4, "big")
    return unpack_entry(bytes(data), 0)


def test_every_field_of_an_index_entry_is_in_the_table_and_in_this_order():
    assert [row[2] for row in ENTRY] == [*Entry._fields, "crc"]


@by_row(ENTRY[:-1])
def test_a_field_of_an_index_entry_is_where_the_page_says(offset, size, name, kind):
    plain, changed = entry_with(0, 0)._asdict(), entry_with(offset, size)._asdict()
    assert {each for each in plain if plain[each] != changed[each]} == {name}
    assert changed[name] == all_ones(size, kind)


# ---- tables and checkpoint -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "cls", "place"),
    [(PARTITION, PartitionRow, "partitions"), (TERM, TermRow, "terms"), (DAMAGE, DamagedRange, "damage")],
    ids=["partitions", "terms", "damage"],
)
def test_a_field_of_a_table_row_is_where_the_page_says(table, cls, place):
    assert [row[2] for row in table] == list(cls._fields)
    zeros = cls(*[0] * len(cls._fields))
    empty = Tables(**{place: [zeros]}).pack()
    start = empty.index(b"\0\0\0\1") + 4
    for offset, size, name, kind in table:
        data = bytearray(empty)
        data[start + offset : start + offset + size] = b"\xff" * size
        (row,) = getattr(Tables.unpack(data), place)
        assert row == zeros._replace(**{name: all_ones(size, kind)})


def test_a_checkpoint_begins_as_the_page_says():
    (first, last) = CHECKPOINT
    data = Checkpoint(0x0102030405060708, True, Tables()).pack()
    assert data[first[0] : first[0] + first[1]] == bytes(range(1, 9))
    assert data[last[0] : last[0] + last[1]] == b"\1"


# ---- defaults ------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_code():
    said = {row[0].strip("`"): row[1].split(" ")[0] for row in rows(section("16 Versions and limits"), 3)}
    shown = {ALWAYS: "always", True: "yes", False: "no"}
    defaults = {field.name: field.default for field in fields(StorageConfig)}
    wanted = {
        name: shown[value] if isinstance(value, bool) or value == ALWAYS else str(value)
        for name, value in defaults.items()
    }
    assert {name: value for name, value in said.items() if name in wanted} == wanted


def test_sizes_in_words_are_those_in_numbers():
    units = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
    found = re.findall(r"^\| `\w+` \| (\d+) \((\d+) ([GMK]iB)\)", section("16 Versions and limits"), re.MULTILINE)
    assert found
    assert [int(number) for number, _, _ in found] == [int(count) * units[unit] for _, count, unit in found]


# ---- the example ---------------------------------------------------------------------------------------------------


def example(name):
    (text,) = re.findall(rf"^```hex {name}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))


@pytest.fixture(scope="module")
def disk():
    """The directory of the example."""
    disk = SimDisk()
    group = open_group(disk)
    message = Message(
        body=b"hello", business_id="biz-1", attributes={"TAGS": "paid"}, app="shop", send_time_ms=1700000000000
    )
    address = bytes.fromhex("00000000000000000000ffff7f000001")
    data = bytearray(envelope.pack(message))
    group.append(7, 3, data, 1, 1, term=2, now_ms=1700000000123, client_address=address)
    group.flush()
    ticket = group.begin_sync()
    ticket.run()
    group.end_sync(ticket)
    group.close()
    return disk


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("format", "format"),
        ("index", "index/7/3/00000000000000000000.index"),
        ("checkpoint", "checkpoint"),
    ],
)
def test_the_example_shows_the_bytes_of_a_file(disk, name, path):
    assert example(name) == get(disk, path)


def test_the_example_shows_the_used_bytes_of_a_segment_and_zeros_follow(disk):
    file = disk.open("journal/00000000000000000000.journal")
    shown = example("journal")
    assert file.read_at(0, len(shown) + 1000) == shown + bytes(1000)
    assert file.size() == StorageConfig().segment_bytes


def test_the_example_of_a_state_file_is_whole(disk):
    assert read_copy(disk, "format") == (1, b"lakemq-data 1")

"""Stored messages as columns: what comes out is what a consumer would be given, message by message."""

from base64 import b64decode
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakemq.pipeline.arrow as arrow
import lakemq.pipeline.columns as columns
from lakemq.attributes import encode_attributes
from lakemq.compression import Compression
from lakemq.envelope import pack, unpack_all
from lakemq.errors import BadParameterError, SerializationError
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.pipeline import schema
from lakemq.pipeline.arrow import DAMAGED, DAMAGED_BODY, Columns, check_opened
from lakemq.pipeline.columns import BODIES, IDS, REST, Block
from lakemq.record import FIXED_BYTES

FLAG_AT = 41  # in a message: of a batch, how many it says it has

FORMS = [None] if columns._columns is None else [columns._columns, None]
KINDS = st.sampled_from([Compression.NONE, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY, Compression.ZLIB])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ATTRIBUTES = st.dictionaries(st.sampled_from(["TAGS", "UNIQ_ID", "a", "b c", "ü"]), TEXT, max_size=3)
ITEMS = st.builds(
    BatchItem, st.binary(max_size=60), TEXT, ATTRIBUTES, st.integers(-128, 127), st.integers(-32768, 32767)
)
FIELDS = {
    "business_id": TEXT,
    "attributes": ATTRIBUTES,
    "priority": st.integers(-128, 127),
    "app": st.sampled_from(["shop", "shop.billing", ""]),
    "extension": st.binary(max_size=5),
    "compression": KINDS,
    "send_time_ms": st.integers(0, 1 << 42),
    "store_time_ms": st.integers(0, 1 << 30),
    "term": st.integers(0, 1 << 30),
}
MESSAGES = st.one_of(
    st.builds(Message, body=st.binary(max_size=200), flag=st.integers(-32768, 32767), **FIELDS),
    st.builds(BatchMessage, items=st.lists(ITEMS, min_size=1, max_size=5).map(tuple), **FIELDS),
)


@pytest.fixture(params=["compiled", "defined"])
def form(request, monkeypatch):
    """The compiled loops and their definition must do the same."""
    if request.param == "defined":
        monkeypatch.setattr(columns, "_columns", None)
    elif columns._columns is None:
        pytest.skip("lakemq._columns was not built: no compiler at install time")


def block_of(messages, index=100):
    """Some messages as a broker stores them, and the same one by one."""
    data, alone = b"", []
    for message in messages:
        stored = pack_at(message, index)
        data += stored
        (value,) = unpack_all(stored)
        some = value.messages() if isinstance(value, BatchMessage) else [value]
        alone += [(one, value) for one in some]
        index += len(some)
    return data, alone


def pack_at(message, index):
    return pack(replace(message, partition=3, index=index))


def open_block(data):
    """All of a block in one piece."""
    (opened,) = Block(data).opened()
    return opened


def rows_of(data, names=schema.SOURCE.names):
    return Columns(open_block(data), "orders", 3, 7).batch(names).to_pylist()


@settings(deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=6))
def test_every_message_is_a_row_as_a_consumer_would_see_it(messages):
    data, alone = block_of(messages)
    for compiled in FORMS:
        with patch.object(columns, "_columns", compiled):
            rows = rows_of(data)
        assert len(rows) == len(alone)
        for row, (one, carrier) in zip(rows, alone, strict=True):
            attributes = dict(one.attributes)
            tags = attributes.get("TAGS") or (carrier.attributes.get("TAGS") if one is not carrier else "") or ""
            assert row["value"] == one.body
            assert row["key"] == (one.business_id or None)
            assert row["offset"] == one.index
            assert row["partition"] == 3
            assert row["app"] == one.app
            assert row["priority"] == one.priority
            assert row["flag"] == one.flag
            assert row["term"] == one.term
            assert row["tags"] == (tags.split(",") if tags else [])
            assert dict(row["headers"]) == {k: v for k, v in attributes.items() if k not in ("TAGS", "UNIQ_ID")}
            assert row["messageId"] == (attributes.get("UNIQ_ID") or f"orders/3/{one.index}")
            assert int(row["sendTime"].timestamp() * 1000 + 0.5) == one.send_time_ms
            stored = one.send_time_ms + one.store_time_ms
            assert int(row["timestamp"].timestamp() * 1000 + 0.5) == stored


@pytest.mark.usefixtures("form")
def test_only_the_columns_asked_for_are_made_in_that_order():
    data, _ = block_of([Message(body=b"a"), Message(body=b"b")])
    batch = Columns(open_block(data), "orders", 3).batch(["offset", "value"])
    assert batch.schema.names == ["offset", "value"]
    assert batch.to_pylist() == [{"offset": 100, "value": b"a"}, {"offset": 101, "value": b"b"}]


@pytest.mark.usefixtures("form")
def test_the_next_index_is_behind_the_last_message_of_a_batch():
    batch = BatchMessage(items=(BatchItem(b"a"), BatchItem(b"b"), BatchItem(b"c")))
    data, _ = block_of([Message(body=b"x"), batch])
    assert open_block(data).next_index == 104


@pytest.mark.usefixtures("form")
def test_a_body_that_cannot_be_opened_is_marked_and_the_others_are_not_lost():
    good, bad = (
        pack_at(Message(body=b"good"), 100),
        bytearray(pack_at(Message(body=b"z" * 300, compression=Compression.LZ4), 101)),
    )
    bad[FIXED_BYTES : FIXED_BYTES + 4] = b"junk"
    rows = rows_of(good + bytes(bad) + pack_at(Message(body=b"after"), 102))
    assert [row["value"] for row in rows][::2] == [b"good", b"after"]
    assert DAMAGED in dict(rows[1]["headers"])
    assert rows[1]["value"] is None, "what cannot be opened is no value"
    assert b64decode(dict(rows[1]["headers"])[DAMAGED_BODY]).startswith(b"junk"), "and nothing is thrown away"


def test_what_could_not_be_opened_is_not_sent_on():
    """Without a value it would become a tombstone."""
    check_opened({"h": "v"}, "a row")
    with pytest.raises(BadParameterError, match="LAKEMQ_DAMAGED"):
        check_opened({DAMAGED: "…", DAMAGED_BODY: "anVuaw=="}, "a row")


@pytest.mark.usefixtures("form")
def test_a_batch_that_cannot_be_opened_keeps_its_offsets():
    batch = BatchMessage(items=tuple(BatchItem(b"%d" % n) for n in range(4)), attributes={"TAGS": "t"})
    data = bytearray(pack_at(batch, 100))
    data[FIXED_BYTES + 6 : FIXED_BYTES + 10] = b"\x7f\xff\xff\xff"  # the first item says it is very long
    rows = rows_of(bytes(data) + pack_at(Message(body=b"after"), 104))
    assert [row["offset"] for row in rows] == [100, 101, 102, 103, 104]
    assert [row["value"] for row in rows[:4]] == [None] * 4
    assert [len(b64decode(dict(row["headers"])[DAMAGED_BODY])) > 0 for row in rows[:4]] == [True] + [False] * 3
    assert all(DAMAGED in dict(row["headers"]) for row in rows[:4])
    assert rows[4]["value"] == b"after"


@pytest.mark.usefixtures("form")
def test_well_compressed_bodies_are_opened_in_pieces_that_keep_to_the_bound():
    """Each piece has what fits, and one that is larger by itself is alone."""
    sizes = [60_000, 60_000, 30_000, 500_000, 10_000]
    messages = [Message(body=bytes(size), compression=Compression.ZSTD) for size in sizes]
    data, _ = block_of(messages)
    found = list(Block(data).opened(bytes_max=100_000))
    opened = [int(one.rows["body_bytes"].sum()) for one in found]
    assert sum(opened) == sum(sizes)
    assert opened == [60_000, 90_000, 500_000, 10_000]
    assert [index for one in found for index in one.rows["index"].tolist()] == list(range(100, 105))
    assert [one.next_index for one in found] == [101, 103, 104, 105]
    assert not any(one.rows["is_damaged"].any() for one in found)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("kind", [Compression.LZ4, None], ids=["compressed", "plain"])
def test_batches_that_only_say_they_are_large_do_not_take_the_memory_at_once(monkeypatch, kind):
    monkeypatch.setattr(columns, "_OPENED_ROWS_MAX", 50_000)
    batch = BatchMessage(items=tuple(BatchItem(b"z" * 40) for _ in range(9)))
    data, index = b"", 100
    for _ in range(8):
        message = bytearray(pack_at(replace(batch, compression=kind or Compression.NONE), index))
        message[FLAG_AT : FLAG_AT + 2] = (30_000).to_bytes(2, "big")
        data += bytes(message)
        index += 30_000
    found = Block(data).opened()
    first = next(found)
    assert len(first.rows) == 30_000
    assert first.rows["is_damaged"].all()
    assert [len(one.rows) for one in found] == [30_000] * 7


@pytest.mark.usefixtures("form")
def test_a_key_inside_a_batch_that_is_no_text_is_shown_as_near_as_can_be():
    batch = BatchMessage(items=(BatchItem(b"a", "xy"), BatchItem(b"b", "ok")))
    data = pack_at(batch, 100).replace(b"xy", b"\xff\xfe")
    assert [row["key"] for row in rows_of(data)] == ["��", "ok"]


@pytest.mark.usefixtures("form")
def test_attributes_that_are_no_text_do_not_stop_a_read():
    batch = BatchMessage(items=(BatchItem(b"a", "", {"h": "v"}),))
    data = pack_at(batch, 100).replace(encode_attributes({"h": "v"}), b"h\xff\xff")
    assert DAMAGED in dict(rows_of(data)[0]["headers"])


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("cut", [1, 20, 56, 60])
def test_bytes_that_are_no_messages_are_an_error(cut):
    data, _ = block_of([Message(body=b"abc", business_id="key")])
    with pytest.raises(SerializationError):
        open_block(data[:-cut])


@pytest.mark.skipif(columns._columns is None, reason="lakemq._columns was not built: no compiler at install time")
@given(messages=st.lists(MESSAGES, max_size=4), cut=st.integers(0, 80), junk=st.binary(max_size=80), at=st.integers(0))
def test_messages_are_counted_alike_whatever_the_bytes_are(messages, cut, junk, at):
    data = bytearray(b"".join(pack_at(message, 100) for message in messages))
    data = data[: max(len(data) - cut, 0)]
    place = at % (len(data) + 1)
    data[place : place + len(junk)] = junk
    assert columns._columns.count(data) == columns.count_python(memoryview(data))


@pytest.mark.usefixtures("form")
def test_there_is_room_for_the_messages_of_a_block_and_no_more(monkeypatch):
    asked = []
    make = columns.np.zeros
    monkeypatch.setattr(columns.np, "zeros", lambda count, kind: asked.append(count) or make(count, kind))
    bodies = [Message(body=b"x" * 1000), Message(body=b"y" * 500, compression=Compression.LZ4), Message(body=b"")]
    data, _ = block_of(bodies)
    assert len(open_block(data).rows) == 3
    assert asked == [3]


@pytest.mark.usefixtures("form")
def test_no_messages_at_all_are_an_error():
    with pytest.raises(SerializationError):
        open_block(b"")


@pytest.mark.usefixtures("form")
def test_the_crc_is_that_of_the_value_not_of_what_was_carried():
    import zlib

    data, _ = block_of([Message(body=b"q" * 400, compression=Compression.ZSTD), Message(body=b"plain")])
    found = Columns(open_block(data), "orders", 3).batch(["crc"], schema.MESSAGES).column("crc").to_pylist()
    assert found == [zlib.crc32(b"q" * 400), zlib.crc32(b"plain")]


def swept(opened, parts=frozenset({BODIES, IDS, REST})):
    return columns.sweep(opened.arena, opened.rows, "orders/3/", parts)


def numbered(indexes):
    rows = columns.np.zeros(len(indexes), columns.ROW)
    rows["index"] = indexes
    return Columns(columns.Opened(rows, b"", 0), "orders", 3)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    "indexes", [[8, 9, 10, 11], [98, 99, 100], [5, 7, 8, 8, 3], [-2, -1, 0, 1], [(1 << 63) - 2, (1 << 63) - 1]]
)
def test_a_message_id_ends_with_the_offset(indexes):
    assert numbered(indexes).message_id().to_pylist() == [f"orders/3/{max(index, 0)}" for index in indexes]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("count", [1, 5000, 4096, 3, 40_000, 70_000])
def test_columns_whose_rows_are_all_alike_are_as_long_as_the_block(count):
    names = ["key", "topic", "partition", "headers", "tags", "attempt"]
    batch = numbered(range(count)).batch(names)
    batch.validate(full=True)
    assert batch.num_rows == count
    assert batch.slice(count - 1).to_pylist() == [
        {"key": None, "topic": "orders", "partition": 3, "headers": [], "tags": [], "attempt": 1}
    ]
    assert Columns(columns.Opened(numbered([7])._rows, b"", 0), "bills", 4).batch(names)["topic"].to_pylist() == [
        "bills"
    ]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    "apps",
    [("shop",), ("shop", "shop"), ("shop", "shoq"), ("shop", "sho"), ("", ""), ("", "x"), ("店", "店"), ("店", "x")],
)
def test_the_app_is_that_of_each_message_whether_all_are_alike_or_not(apps):
    items = (BatchItem(b"one"), BatchItem(b"two"))
    data, _ = block_of([BatchMessage(items=items, app=app) for app in apps])
    opened = open_block(data)
    found = Columns(opened, "orders", 3).batch(["app"])
    found.validate(full=True)
    assert found["app"].to_pylist() == [app for app in apps for _ in items]
    assert swept(opened).is_app_alike == (len(set(apps)) == 1)


def test_columns_whose_rows_are_all_alike_are_kept_for_a_few_topics_only():
    for number in range(3 * arrow._ALIKE_MAX):
        Columns(columns.Opened(numbered([7])._rows, b"", 0), f"t{number}", 4).topic()
        assert len(arrow._ALIKE) <= arrow._ALIKE_MAX


@pytest.mark.skipif(columns._columns is None, reason="lakemq._columns was not built: no compiler at install time")
@settings(deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=6), damage=st.integers(0, 200))
def test_rows_and_what_a_sweep_finds_are_the_same_as_defined(messages, damage):
    data = bytearray(block_of(messages)[0])
    if damage < len(messages[0].items[0].body if isinstance(messages[0], BatchMessage) else b""):
        data[FIXED_BYTES + damage] ^= 0x55  # inside a batch: some can then not be opened
    opened = open_block(bytes(data))
    with patch.object(columns, "_columns", None):
        defined = open_block(bytes(data))
        assert opened.rows.tobytes() == defined.rows.tobytes()
        assert opened.next_index == defined.next_index
        expected = swept(defined)
    found = swept(opened)
    assert found[2:] == expected[2:]
    for one, other in zip(pieces(found, opened), pieces(expected, defined), strict=True):
        assert one == other


def pieces(found, opened):
    """What there is of each piece: behind it may be anything."""
    count, at = len(opened.rows), found.starts
    sizes = {"index": 8 * count, "stored": 8 * count, "sent": 8 * count, "term": 4 * count, "flag": 2 * count}
    sizes |= {"body_ends": 4 * count + 4, "id_ends": 4 * count + 4, "priority": count}
    sizes |= {"ids": found.ids_bytes, "body": found.sums.body}
    return [(name, found.memory[at[name] : at[name] + size].tobytes()) for name, size in sizes.items()]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("parts", [set(), {BODIES}, {IDS}, {REST}, {IDS, REST}])
def test_a_sweep_finds_what_is_asked_for_and_the_sums_of_all(parts):
    opened = open_block(block_of([Message(body=b"abc", business_id="k"), Message(body=b"de", priority=9)])[0])
    found, whole = swept(opened, frozenset(parts)), swept(opened)
    assert found.sums == whole.sums == columns.Sums(5, 1, 0, 0, 0, 0)
    known = dict(pieces(whole, opened))
    wanted = {"index", "stored", "sent"} | {piece for part in parts for piece in columns._PIECES[part]}
    assert {name for name, start in found.starts.items() if start >= 0} == wanted
    for name in wanted:
        start = found.starts[name]
        assert found.memory[start : start + len(known[name])].tobytes() == known[name]


@pytest.mark.usefixtures("form")
def test_columns_that_are_asked_for_later_are_there_too():
    data, _ = block_of([Message(body=b"a", priority=3), Message(body=b"b")])
    made = Columns(open_block(data), "orders", 3)
    assert made.batch(["offset"]).to_pylist() == [{"offset": 100}, {"offset": 101}]
    assert made.batch(["value", "priority"]).to_pylist() == [
        {"value": b"a", "priority": 3},
        {"value": b"b", "priority": 0},
    ]
    assert made.batch(["offset", "messageId"])["messageId"].to_pylist() == ["orders/3/100", "orders/3/101"]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("place", ["body_at", "body_bytes"])
@pytest.mark.parametrize("value", [-1, 1 << 30])
def test_rows_that_speak_of_bytes_that_are_not_there_are_not_followed(place, value):
    opened = open_block(block_of([Message(body=b"abc"), Message(body=b"de")])[0])
    rows = opened.rows.copy()
    rows[place][1] = value
    with pytest.raises(AssertionError, match="bytes that are there"):
        swept(opened._replace(rows=rows))


@pytest.mark.usefixtures("form")
def test_rows_that_speak_of_the_same_bytes_do_not_overrun_the_room_for_bodies():
    opened = open_block(block_of([Message(body=b"abc" * 100)])[0])
    with pytest.raises(AssertionError, match="each of them once"):
        swept(opened._replace(rows=columns.np.repeat(opened.rows, 5)))


@pytest.mark.skipif(columns._columns is None, reason="lakemq._columns was not built: no compiler at install time")
@pytest.mark.parametrize(
    ("starts", "said"),
    [
        ((0, 8, 16, -1, -1, -1, -1, -1, -1), "ten pieces"),
        ((0, 8, 17, -1, -1, -1, -1, -1, -1, -1), "not room"),
        ((0, 8, -1, -1, -1, -1, -1, -1, -1, -1), "not room"),
        ((0, 8, 16, 0, -1, -1, -1, -1, -1, -1), "together"),
        ((0, 8, 16, -1, -1, 0, -1, 0, -1, -1), "together"),
    ],
)
def test_a_sweep_into_too_little_room_is_refused(starts, said):
    rows = columns.np.zeros(1, columns.ROW)
    with pytest.raises((TypeError, ValueError), match=said):
        columns._columns.sweep(b"", rows, b"x/", columns.np.empty(24, "u1"), starts)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("kind", [Compression.ZSTD, Compression.LZ4])
def test_few_bytes_that_are_very_many_when_opened_are_opened_in_pieces(kind):
    items = tuple(BatchItem(b"%d" % n * 1000) for n in range(3))
    messages = [
        Message(body=b"first"),
        Message(body=b"a" * 50_000, compression=kind),
        BatchMessage(items=items, compression=kind),
        Message(body=b"between"),
        Message(body=b"b" * 50_000, compression=kind),
        Message(body=b"c" * 50_000, compression=kind),
        Message(body=b"last"),
    ]
    data, alone = block_of(messages)
    block = Block(data)
    assert (block.first_index, block.next_index) == (100, 109)
    found = list(block.opened(bytes_max=40_000))
    assert [one.next_index for one in found] == [102, 106, 107, 109]
    assert max(len(one.arena) for one in found) <= len(data) + 50_000, "the bound, or one that is larger alone"
    rows = [row for one in found for row in Columns(one, "orders", 3).batch(["offset", "value"]).to_pylist()]
    assert rows == [{"offset": 100 + n, "value": one.body} for n, (one, _) in enumerate(alone)]

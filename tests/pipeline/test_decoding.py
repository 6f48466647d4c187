"""Bodies as columns: what can be read is typed, what cannot is told, and nothing fails."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import fastavro
import pyarrow as pa

from lakemq import spark as lm
from lakemq.pipeline.decoding import decode_avro, decode_json, read_avro
from lakemq.pipeline.errors import OptionError

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": ["null", "double"], "default": None},
    ],
}


def avro(schema, record):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def avro_file(schema, *records):
    out = io.BytesIO()
    fastavro.writer(out, schema, records)
    return out.getvalue()


def read(bodies, schema=ORDER, framing="none"):
    """Without Spark: body and reason of each."""
    from lakemq.pipeline.decoding import _checked_schema

    found = read_avro(pa.array(bodies, pa.binary()), _checked_schema(json.dumps(schema)), framing)
    return [(row["body"], row["_corrupt"]) for row in found.to_pylist()]


def frame_of(spark, bodies, kind="binary"):
    rows = [(n, bytearray(body) if isinstance(body, bytes) else body) for n, body in enumerate(bodies)]
    return spark.createDataFrame(rows, f"n int, value {kind}")


def asked(frame):
    rows = frame.orderBy("n").select("body", "_corrupt").collect()
    return [(row["body"] and row["body"].asDict(True), row["_corrupt"]) for row in rows]


JSON = [
    (b'{"id": 1, "at": {"x": "y"}}', ({"id": 1, "at": {"x": "y"}}, None)),
    (b'{"more": 1}', ({"id": None, "at": None}, None)),
    (b' {"id": 2}\n', ({"id": 2, "at": None}, None)),
    (None, (None, None)),
    *[
        (bad, (None, bad.decode()))
        for bad in (
            b"",
            b"not json",
            b"null",
            b"3",
            b'[{"id": 1}]',
            b'{"id": "x"}',
            b'{"id": 99999999999}',
            b'{"id": 1',
            b'{"id": 1} and more',
            b'{"id": 1}}',
            b'{"id": 1}{"id": 2}',
            b'{"id": 1},{"id": 2}',
            b'{"at": 3}',
        )
    ],
    (b"\xff{", (None, "\ufffd{")),
]


def test_json_is_read_and_what_is_none_is_kept_as_text(spark):
    found = asked(decode_json(frame_of(spark, [body for body, _ in JSON]), "id int, at struct<x: string>"))
    assert found == [wanted for _, wanted in JSON]


def test_json_of_a_column_of_text_and_of_no_rows(spark):
    frame = lm.decode_json(frame_of(spark, ['{"id": 7}', "x"], "string"), "struct<id: int>")
    assert asked(frame) == [({"id": 7}, None), (None, "x")]
    empty = lm.decode_json(frame_of(spark, []), "id int")
    assert empty.columns == ["n", "value", "body", "_corrupt"]
    assert empty.collect() == []


def test_a_field_alone_is_not_taken_from_a_body_that_does_not_fit(spark):
    frame = decode_json(frame_of(spark, [b'{"id": 1, "name": {}}', b'{"id": 2, "name": "b"}']), "id int, name int")
    assert [row["id"] for row in frame.select("body.id").collect()] == [None, None]


def test_avro_is_read_and_what_is_none_is_told(spark):
    bodies = [avro(ORDER, {"id": 1, "total": 2.5}), None, b"", b"\x02", avro(ORDER, {"id": 2, "total": None}) + b"!"]
    frame = lm.decode_avro(frame_of(spark, bodies), json.dumps(ORDER))
    assert frame.schema["body"].dataType.simpleString() == "struct<id:bigint,total:double>"
    found = asked(frame)
    assert found[:2] == [({"id": 1, "total": 2.5}, None), (None, None)]
    assert [body for body, _ in found[2:]] == [None] * 3
    assert found[2][1] == "EOFError"
    assert found[4][1] == "ValueError: 1 bytes are left over behind the record"
    assert lm.decode_avro(frame_of(spark, []), json.dumps(ORDER)).collect() == []


ALL = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "ratio", "type": "float"},
        {"name": "raw", "type": "bytes"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "hash2", "type": "Hash"},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "items", "type": {"type": "array", "items": {"type": "map", "values": "long"}}},
        {"name": "number", "type": ["null", "int", "double"]},
        {"name": "nothing", "type": "null"},
        {
            "name": "select",
            "type": ["null", {"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}]}],
        },
    ],
}
ONE = {
    "flag": True,
    "small": -1,
    "ratio": 0.5,
    "raw": b"\x00\xff",
    "hash": b"ab",
    "hash2": b"cd",
    "color": "BLUE",
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 12, 0, 0, 5000, UTC),
    "local": datetime(2024, 2, 29, 12),
    "price": Decimal("12.50"),
    "time": 1000,
    "uuid": "6f3a",
    "items": [{"a": 1}, {}],
    "number": 2,
    "nothing": None,
    "select": {"a": 3},
}


def test_every_avro_type_has_a_column_type(spark):
    plain = json.loads(
        json.dumps(ALL).replace(', "logicalType": "time-millis"', "").replace(', "logicalType": "uuid"', "")
    )
    ((row, why),) = asked(decode_avro(frame_of(spark, [avro(plain, ONE)]), json.dumps(ALL)))
    assert why is None
    assert row == {**ONE, "number": 2.0, "at": ONE["at"].replace(tzinfo=None)}  # the session's zone is UTC


def test_a_prefix_and_a_file_around_the_record():
    record = {"id": 1, "total": None}
    body = avro(ORDER, record)
    assert read([b"\0\0\0\0\7" + body, body], framing="confluent") == [
        (record, None),
        (None, "ValueError: it does not begin with a zero and the number of a schema"),
    ]
    older = {**ORDER, "fields": ORDER["fields"][:1]}
    found = read([avro_file(older, {"id": 5}), avro_file(ORDER, record, record), body], framing="file")
    assert found[0] == ({"id": 5, "total": None}, None)
    assert found[1] == (None, "ValueError: the file has 2 records, not one")
    assert found[2][0] is None
    assert found[2][1].startswith("ValueError")


def test_one_value_that_does_not_fit_its_column_is_the_fault_of_its_row():
    number = {"type": "bytes", "logicalType": "decimal", "precision": 3}
    schema = {"type": "record", "name": "D", "fields": [{"name": "d", "type": number}]}
    wide = {"type": "record", "name": "D", "fields": [{"name": "d", "type": {**number, "precision": 9}}]}
    bodies = [avro(wide, {"d": Decimal(value)}) for value in (123, 123456, 9)]
    (first, bad, last) = read(bodies, schema)
    assert (first, last) == (({"d": Decimal(123)}, None), ({"d": Decimal(9)}, None))
    assert bad[0] is None
    assert bad[1]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('"long"', "not that of a record"),
        ("{", "no Avro schema"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "strng"}]}', "no Avro schema: UnknownType"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}', "R contains itself"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}', "union of several"),
        ('{"type": "record", "name": "R", "fields": []}', "R has no fields"),
    ],
)
def test_a_schema_that_no_column_can_have_is_refused(spark, schema, text):
    with pytest.raises(OptionError, match=text):
        decode_avro(frame_of(spark, []), schema)


def test_what_is_wrong_with_the_call_is_said_at_once(spark):
    frame = frame_of(spark, [])
    with pytest.raises(OptionError, match="there is no column 'velue'"):
        decode_json(frame, "id int", "velue")
    with pytest.raises(OptionError, match="column n is int, not binary or string"):
        decode_json(frame, "id int", "n")
    with pytest.raises(OptionError, match="column n is int, not binary"):
        decode_avro(frame, json.dumps(ORDER), "n")
    with pytest.raises(OptionError, match="is no schema"):
        decode_json(frame, "id itn")
    with pytest.raises(OptionError, match="has no fields"):
        decode_json(frame, "array<int>")
    with pytest.raises(OptionError, match="is not one of none, confluent, file"):
        decode_avro(frame, json.dumps(ORDER), framing="magic")

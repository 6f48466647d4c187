"""Bodies made columns: DataFrame in, the same with `body` and `_corrupt` out. No body fails a query.

JSON is left to Spark's own functions. Avro is read by fastavro, because Spark's is a jar of its own; only the column of
the bodies goes to Python, as Arrow. Of `body` and `_corrupt` one at most is set; both are null where the body is null.
"""

import io
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from lakemq.pipeline.errors import OptionError
from lakemq.pipeline.schema import TIMESTAMP

BODY, CORRUPT = "body", "_corrupt"
FRAMINGS = ("none", "confluent", "file")
_READ, _BAD, _END = "__read", "__bad", "__end"
_CONFLUENT_BYTES = 5  # a zero, then the number of the schema


def decode_json(frame: DataFrame, schema_ddl: str, column: str = "value") -> DataFrame:
    """Read JSON objects: `body` has the fields of the schema, `_corrupt` the text that is none or does not fit it.

    A field that an object does not have is null, one that the schema does not name is left out.
    """
    _check_column(frame, column, (BinaryType, StringType))
    wanted = StructType(
        [
            StructField(BODY, _fields(schema_ddl)),
            StructField(_END, StringType()),
            StructField(_BAD, StringType()),
        ]
    )
    text = F.make_valid_utf8(F.col(column).cast("string"))
    # Spark takes the first object of a text and does not look at the rest: inside another one, it has to.
    whole = F.concat(F.lit(f'{{"{BODY}":'), text, F.lit(f',"{_END}":"."}}'))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
    read = frame.withColumn(_READ, F.from_json(whole, wanted, options))
    is_good = F.col(f"{_READ}.{_BAD}").isNull() & F.col(f"{_READ}.{_END}").isNotNull()
    is_good = is_good & F.col(f"{_READ}.{BODY}").isNotNull()
    found = F.when(is_good, F.col(f"{_READ}.{BODY}"))
    return read.withColumns({BODY: found, CORRUPT: F.when(~is_good, text)}).drop(_READ)


def decode_avro(frame: DataFrame, schema_json: str, column: str = "value", framing: str = "none") -> DataFrame:
    """Read Avro records: `body` has the fields of the schema, `_corrupt` says why a body could not be read.

    `framing` is what stands around a record: nothing; "confluent", five bytes before it; "file", an Avro file with one
    record, which is read by its own schema and made to fit this one.
    """
    _check_column(frame, column, (BinaryType,))
    if framing not in FRAMINGS:
        raise OptionError(f"framing={framing!r} is not one of {', '.join(FRAMINGS)}")
    text = _checked_schema(schema_json)
    ddl, _ = _avro_type(json.loads(text), {}, ())

    def read(bodies: pa.Array) -> pa.Array:
        return read_avro(bodies, text, framing)

    # Not mapInArrow: that wants pandas to be installed, and all columns to pass through Python.
    # pyspark lists it in its documentation and not in its types.
    udf = F.arrow_udf(read, returnType=f"struct<{BODY}: {ddl}, {CORRUPT}: string>")  # type: ignore[attr-defined]
    frame = frame.withColumn(_READ, udf(F.col(column)))
    names = {name: F.col(f"{_READ}.{name}") for name in (BODY, CORRUPT)}
    return frame.withColumns(names).drop(_READ)


def _check_column(frame: DataFrame, column: str, kinds: tuple[type[DataType], ...]) -> None:
    types = {field.name: field.dataType for field in frame.schema.fields}
    if column not in types:
        raise OptionError(f"there is no column {column!r}", f"The columns are {', '.join(types)}.")
    if not isinstance(types[column], kinds):
        names = " or ".join(kind.typeName() for kind in kinds)
        raise OptionError(f"column {column} is {types[column].simpleString()}, not {names}", "Cast it before.")


def _fields(schema_ddl: str) -> StructType:
    try:
        found = DataType.fromDDL(schema_ddl)
    except PySparkException as error:
        said = str(error).strip().splitlines()[0]
        raise OptionError(f"{schema_ddl!r} is no schema: {said}", 'Write e.g. "id bigint, total double".') from None
    if not isinstance(found, StructType):
        raise OptionError(f"{schema_ddl!r} has no fields", 'Write e.g. "id bigint, total double".')
    return found


# Avro's types in Spark's words and in Arrow's.
_PLAIN: dict[str, tuple[str, pa.DataType]] = {
    "null": ("string", pa.string()),
    "boolean": ("boolean", pa.bool_()),
    "int": ("int", pa.int32()),
    "long": ("bigint", pa.int64()),
    "float": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "bytes": ("binary", pa.binary()),
    "fixed": ("binary", pa.binary()),
    "string": ("string", pa.string()),
    "enum": ("string", pa.string()),
}
_LOGICAL: dict[tuple[str, str], tuple[str, pa.DataType]] = {
    ("int", "date"): ("date", pa.date32()),
    ("long", "timestamp-millis"): ("timestamp", TIMESTAMP),
    ("long", "timestamp-micros"): ("timestamp", TIMESTAMP),
    ("long", "local-timestamp-millis"): ("timestamp_ntz", pa.timestamp("us")),
    ("long", "local-timestamp-micros"): ("timestamp_ntz", pa.timestamp("us")),
}
_NUMBERS = ("int", "long", "float", "double")
_DECIMAL_DIGITS_MAX = 38

Named = dict[str, Any]


def _checked_schema(schema_json: str) -> str:
    """The schema as fastavro shall see it: full names, and no logical types but those that become column types."""
    import fastavro

    try:
        parsed = fastavro.parse_schema(json.loads(schema_json))
    except Exception as error:  # of many kinds, fastavro's have no base
        raise OptionError(f"this is no Avro schema: {type(error).__name__}: {error}") from None
    plain = _without_unknown(json.loads(json.dumps(parsed, default=str)))
    if not isinstance(plain, dict) or plain.get("type") not in ("record", "error"):
        raise OptionError("the Avro schema is not that of a record", "Give the schema of the whole body.")
    return json.dumps(plain)


def _without_unknown(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_unknown(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if not name.startswith("__")}
    if "logicalType" in kept and not _is_column_type(kept):
        del kept["logicalType"]
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = _without_unknown(kept[name])
    if "fields" in kept:
        kept["fields"] = [_without_unknown(field) for field in kept["fields"]]
    return kept


def _is_column_type(schema: Named) -> bool:
    kind, logical = schema["type"], schema["logicalType"]
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return 0 < int(schema.get("precision", 0)) <= _DECIMAL_DIGITS_MAX
    return isinstance(kind, str) and (kind, logical) in _LOGICAL


def _avro_type(schema: Any, named: Named, above: tuple[str, ...]) -> tuple[str, pa.DataType]:
    """Spark's and Arrow's type of what an Avro schema describes; `above` are the records around it."""
    if isinstance(schema, list):
        return _union_type(schema, named, above)
    if isinstance(schema, str):
        if schema in above:
            raise OptionError(f"Avro record {schema} contains itself, which no column can")
        return _PLAIN[schema] if schema in _PLAIN else _avro_type(named[schema], named, above)
    kind = schema["type"]
    if "name" in schema and kind in ("record", "error", "enum", "fixed"):
        named[schema["name"]] = schema
    if kind in ("record", "error"):
        return _record_type(schema, named, above)
    if kind == "array":
        ddl, arrow = _avro_type(schema["items"], named, above)
        return f"array<{ddl}>", pa.list_(arrow)
    if kind == "map":
        ddl, arrow = _avro_type(schema["values"], named, above)
        return f"map<string, {ddl}>", pa.map_(pa.string(), arrow)
    if schema.get("logicalType") == "decimal":
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        return f"decimal({precision}, {scale})", pa.decimal128(precision, scale)
    if "logicalType" in schema:
        return _LOGICAL[kind, schema["logicalType"]]
    return _avro_type(kind, named, above) if kind not in _PLAIN else _PLAIN[kind]


def _record_type(schema: Named, named: Named, above: tuple[str, ...]) -> tuple[str, pa.DataType]:
    inside = (*above, schema["name"])
    fields = [(field["name"], *_avro_type(field["type"], named, inside)) for field in schema["fields"]]
    if not fields:
        raise OptionError(f"Avro record {schema['name']} has no fields, which no column can")
    ddl = ", ".join(f"`{name}`: {kind}" for name, kind, _ in fields)
    return f"struct<{ddl}>", pa.struct([(name, arrow) for name, _, arrow in fields])


def _union_type(schema: list[Any], named: Named, above: tuple[str, ...]) -> tuple[str, pa.DataType]:
    kinds = [one for one in schema if one != "null"]
    if len(kinds) == 1:
        return _avro_type(kinds[0], named, above)
    if kinds and all(isinstance(one, str) and one in _NUMBERS for one in kinds):
        return _PLAIN["long" if set(kinds) <= {"int", "long"} else "double"]
    if not kinds:
        return _PLAIN["null"]
    raise OptionError("a union of several types in the Avro schema has no column type", "Decode such bodies yourself.")


def read_avro(bodies: pa.Array, schema_json: str, framing: str) -> pa.StructArray:
    """What `decode_avro` does with one batch."""
    read, arrow = _reader(schema_json, framing)
    found: list[Any] = []
    why: list[str | None] = []
    for body in bodies.to_pylist():
        value, reason = (None, None) if body is None else _attempt(read, body)
        found.append(value)
        why.append(reason)
    return pa.StructArray.from_arrays([_column(found, why, arrow), pa.array(why, pa.string())], [BODY, CORRUPT])


def _attempt(read: Callable[[bytes], Any], body: bytes) -> tuple[Any, str | None]:
    try:
        return read(body), None
    except Exception as error:  # bytes of strangers: fastavro raises whatever its parts do
        return None, f"{type(error).__name__}: {error}".rstrip(": ")


def _column(found: list[Any], why: list[str | None], arrow: pa.DataType) -> pa.Array:
    """The values as Arrow; one that is too large for its type is the fault of its row alone."""
    try:
        return pa.array(found, arrow)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for place, value in enumerate(found):
            _, reason = _attempt(lambda one: pa.array([one], arrow), value)
            if reason is not None:
                found[place], why[place] = None, reason
        return pa.array(found, arrow)


@lru_cache(maxsize=16)
def _reader(schema_json: str, framing: str) -> tuple[Callable[[bytes], Any], pa.DataType]:
    """From bytes to a record, by schema and framing; with the Arrow type of the record."""
    import fastavro

    schema = fastavro.parse_schema(json.loads(schema_json))
    _, arrow = _avro_type(json.loads(schema_json), {}, ())

    def read_bare(body: bytes) -> Any:
        source = io.BytesIO(body)
        record = fastavro.schemaless_reader(source, schema, None)
        left = len(body) - source.tell()
        if left:
            raise ValueError(f"{left} bytes are left over behind the record")
        return record

    def read_confluent(body: bytes) -> Any:
        if len(body) < _CONFLUENT_BYTES or body[0]:
            raise ValueError("it does not begin with a zero and the number of a schema")
        return read_bare(body[_CONFLUENT_BYTES:])

    def read_file(body: bytes) -> Any:
        records = list(fastavro.reader(io.BytesIO(body), reader_schema=schema))
        if len(records) != 1:
            raise ValueError(f"the file has {len(records)} records, not one")
        return records[0]

    return {"none": read_bare, "confluent": read_confluent, "file": read_file}[framing], arrow

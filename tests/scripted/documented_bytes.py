"""The documented dialect's bytes, made from the protocol's description alone: struct, and libraries that compress.

A witness: it shares no line with LakeMQ nor with the other scripted client. LAYOUTS is the description's table. What
the description does not allow is a WrongBytesError: a byte too many, a code that is in no table.
"""

import io
import re
import struct
import time
import zipfile
import zlib

import cramjam

MAGIC = 0xCAFEBEBE
VERSION = 2
ACK_FLUSH, ACK_RECEIVE, ACK_NO, ACK_WRITE = range(4)
SUCCESS, TIMEOUT, EXCEPTION, OTHER = range(4)  # how a message is acked
JMQ, KAFKA, MQTT, JOYQUEUE = range(4)  # where a message is from

CODES = {
    *range(10),
    *(91, 92, 93, 101),
    *range(107, 118),
    *(131, 132, 134),
    *range(136, 151),
    *range(181, 191),
}


class WrongBytesError(Exception):
    """What came is not what the description says."""


class RefusedError(Exception):
    """The server said no to the whole request."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


def demand(is_so, text):
    """WrongBytesError unless it is so."""
    if not is_so:
        raise WrongBytesError(text)


# The table. S is STRING, B is BOOLEAN, `[…]` an ARRAY, `[{…}]` an ARRAY whose elements we return as dicts, `?{…}`
# fields after a BOOLEAN that says whether they are there, `~{…}` fields that are there unless the one before is -1.

_PRODUCER_POLICY = """{ isNearby B, isSingle B, isArchive B, weight [brokerId S, weight SHORT], blackList [S],
timeout INT }"""
_CONSUMER_POLICY = """{ isNearby B, isPaused B, isArchive B, isRetry B, isSeq B, ackTimeout INT, batchSize SHORT,
concurrentConsume B, concurrentPrefetchSize INT, delay INT, blackList [S], errTimes INT, maxPartitionNum INT,
readRetryProbability INT }"""
_CLUSTER = f"""topics [{{ topicCode S, producerPolicy ?{_PRODUCER_POLICY}, consumerPolicy ?{_CONSUMER_POLICY}, type INT,
partitionGroups [{{ id INT, leader INT, partitions [INT] }}], code INT }}],
brokers [{{ id INT, host S, port INT, dataCenter S, nearby B, weight INT }}]"""
_COORDINATORS = """coordinators [{ topic S, id INT,
broker ~{ host S, port INT, dataCenter S, isNearby B, weight INT }, code INT }]"""
_CODES = "data [topic S, partitionData [partition SHORT, code INT]]"
_INDEXES = "topics [topic S, partitions [partition SHORT, index LONG, code INT]]"
_CONNECTION = """username S, password S, app S, token S, region S, namespace S, version S, ip S, time LONG,
sequence LONG"""
_PRODUCE = "topics [topic S, txId S, timeout INT, qosLevel BYTE, messages [MESSAGE]], app S"

LAYOUTS = {
    1: (_CONNECTION, "connectionId S, notification S"),
    2: ("", None),
    3: ("topics [S], app S, sequence LONG", "consumerIds [topic S, consumerId S]"),
    4: ("topics [S], app S", None),
    5: ("topics [S], app S, sequence LONG", "producerIds [topic S, producerId S]"),
    6: ("topics [S], app S", None),
    7: ("", None),
    8: ("", "point DOUBLE"),
    10: ("topics [S], app S", _CLUSTER),
    20: ("topics [S], app S", _COORDINATORS),
    21: (
        "topics [topic S, sessionTimeout INT, isNearby B], app S",
        "data [topic S, partitions [SHORT], code INT]",
    ),
    30: (
        "topics [topic S, count SHORT], app S, ackTimeout INT, longPollTimeout INT",
        "data [topic S, messages [MESSAGE]]",
    ),
    31: (
        "topics [topic S, partitions [partition SHORT, count INT, index LONG]], app S",
        "data [topic S, partitions [partition SHORT, messages [MESSAGE], code INT]]",
    ),
    32: (
        "topics [topic S, partitions [partition SHORT, data [partition SHORT, index LONG, type BYTE]]], app S",
        _CODES,
    ),
    33: ("topics [topic S, partitions [partition SHORT, index LONG]], app S", _CODES),
    34: ("topics [topic S, partitions [SHORT]], app S", _INDEXES),
    35: ("topics [topic S, partitions [SHORT]], app S", _INDEXES),
    50: (_PRODUCE, "data [topic S, code INT, result [partition SHORT, index LONG, startTime LONG]]"),
    51: ("topic S, app S, sequence LONG, transactionId S", "txId S, code INT"),
    52: ("topic S, app S, txId S", "code INT"),
    53: ("topic S, app S, txId S", "code INT"),
    54: (
        "app S, topic S, status BYTE, count INT, longPollTimeout LONG",
        "data [topic S, txId S, transactionId S], code INT",
    ),
}
NUMBERS = {"BYTE": ">b", "SHORT": ">h", "INT": ">i", "LONG": ">q", "DOUBLE": ">d", "B": ">?"}


class Layout:
    """A line of the table, to write and read values by."""

    def __init__(self, text):
        self._tokens = re.findall(r"\w+|[\[\]{}?~,]", text)
        self.fields = self._parse_fields() if self._tokens else ()
        assert not self._tokens, f"left of {text!r}: {self._tokens}"

    def _parse_fields(self):
        fields = [self._parse_field()]
        while self._tokens and self._tokens[0] == ",":
            self._tokens.pop(0)
            fields.append(self._parse_field())
        return tuple(fields)

    def _parse_field(self):
        return self._tokens.pop(0), self._parse_type()

    def _parse_type(self):
        token = self._tokens.pop(0)
        if token not in "[?~":
            return token
        if token == "[":
            is_plain = self._tokens[1] == "]"
            is_named = self._tokens[0] == "{"
            inner = self._parse_type() if is_plain else self._parse_braced() if is_named else self._parse_fields()
            assert self._tokens.pop(0) == "]"
            return ("dicts" if is_named else "values" if is_plain else "tuples"), inner
        return ("if so" if token == "?" else "unless -1"), self._parse_braced()

    def _parse_braced(self):
        assert self._tokens.pop(0) == "{"
        fields = self._parse_fields()
        assert self._tokens.pop(0) == "}"
        return fields

    def write(self, *values):
        return _write_fields(self.fields, values)

    def read(self, data):
        """All fields of `data`, which must hold them and nothing else; one field alone is not wrapped."""
        cursor = Cursor(data)
        values = tuple(_read_fields(self.fields, cursor).values())
        cursor.finish()
        return values if len(values) > 1 else values[0]


def _write_fields(fields, values):
    assert len(fields) == len(values), f"{len(values)} values for {[name for name, _ in fields]}"
    return b"".join(_write(kind, value) for (_, kind), value in zip(fields, values, strict=True))


def _write(kind, value):
    if kind in NUMBERS:
        return struct.pack(NUMBERS[kind], value)
    if kind == "S":
        return string(value)
    if kind == "MESSAGE":
        return value
    kind, inner = kind
    assert kind in ("values", "tuples"), "requests have no other"
    parts = [_write(inner, each) if kind == "values" else _write_fields(inner, each) for each in value]
    return struct.pack(">h", len(parts)) + b"".join(parts)


def _read_fields(fields, cursor):
    values = {}
    before = None
    for name, kind in fields:
        at = cursor.at
        before = values[name] = None if kind[0] == "unless -1" and before == -1 else _read(kind, cursor)
        if name == "code":
            demand(before in CODES, f"byte {at}: the code {before} is in no table")
    return values


def _read(kind, cursor):
    if kind in NUMBERS:
        return cursor.number(NUMBERS[kind])
    if kind == "S":
        return cursor.string()
    if kind == "MESSAGE":
        return read_message(cursor)
    kind, inner = kind
    if kind == "unless -1" or (kind == "if so" and cursor.number(">?")):
        return _read_fields(inner, cursor)
    if kind == "if so":
        return None
    count = max(cursor.number(">h"), 0)
    if kind == "values":
        return [_read(inner, cursor) for _ in range(count)]
    elements = [_read_fields(inner, cursor) for _ in range(count)]
    return elements if kind == "dicts" else [tuple(each.values()) for each in elements]


class Cursor:
    """Bytes read one after the other."""

    def __init__(self, data):
        self.data, self.at = bytes(data), 0

    @property
    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        demand(count <= self.left, f"byte {self.at}: {count} bytes are wanted, {self.left} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code):
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def counted(self, code):
        return self.take(max(self.number(code), 0))

    def string(self):
        at, data = self.at, self.counted(">h")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise WrongBytesError(f"byte {at}: a string that is not UTF-8: {error}") from None

    def finish(self):
        demand(not self.left, f"byte {self.at}: {self.left} bytes are left over: {self.data[self.at :][:40].hex()}")


REQUESTS = {number: Layout(request) for number, (request, _) in LAYOUTS.items()}
ANSWERS = {number: Layout(answer) for number, (_, answer) in LAYOUTS.items() if answer is not None}


def string(text):
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def frame(number, request_id, payload=b"", *, version=VERSION, qos=ACK_RECEIVE, send_time=None, is_response=False):
    """A request; with `is_response` what a server would send."""
    sent = now_ms() if send_time is None else send_time
    head = struct.pack(">IBBibq", MAGIC, version, qos << 1 | is_response, request_id, number, sent)
    if is_response:
        head += b"\0" + string("")
    return struct.pack(">i", 4 + len(head) + len(payload)) + head + payload


def read_response(data):
    """The header's fields and the payload of a whole frame."""
    cursor = Cursor(data)
    demand(cursor.number(">i") == len(data), f"the length of a frame of {len(data)} bytes is {data[:4].hex()}")
    demand(cursor.number(">I") == MAGIC, f"the magic is {data[4:8].hex()}")
    version, identity = cursor.number(">B"), cursor.number(">B")
    demand(identity & 1, "a request came where a response was due")
    demand(identity < 8, f"the identity {identity:#04x} has bits that mean nothing")
    names = {"requestId": ">i", "type": ">b", "sendTime": ">q", "status": ">B"}
    header = {"version": version, "qos": identity >> 1} | {name: cursor.number(code) for name, code in names.items()}
    demand(header["status"] in CODES, f"the status {header['status']} is in no table")
    error = cursor.string()
    return header | {"error": error, "payload": cursor.take(cursor.left)}


def now_ms():
    return int(time.time() * 1000)


# Messages.

_FIXED = struct.Struct(">ihqihbqiqh")  # length to flag
_SNAPPY, _ZIP, _ZLIB, _LZ4, _ZSTD = "snappy", "zip", "zlib", "lz4", "zstd"
COMPRESSIONS = (_SNAPPY, _ZIP, _ZLIB, _LZ4, _ZSTD)  # by their numbers; the last two are LakeMQ's


def message(
    body,
    *,
    partition=-1,
    index=0,
    term=0,
    priority=0,
    send_time=None,
    store_time=0,
    crc=None,
    flag=0,
    business_id="",
    attributes=None,
    extension=b"",
    app="",
    compression=None,
    is_ordered=False,
    source=JMQ,
    is_ipv6=False,
    is_batch=False,
):
    """One MESSAGE; `attributes` is a dict, or the bytes themselves."""
    code = is_ordered << 1 | source << 2 | is_ipv6 << 7 | 1 << 8 | is_batch << 12
    if compression is not None:
        code |= 1 | COMPRESSIONS.index(compression) << 4
    carried = compress(compression, body)
    tail = struct.pack(">i", len(carried)) + carried + string(business_id) + attribute_field(attributes)
    tail += struct.pack(">i", len(extension)) + extension + string(app)
    crc = zlib.crc32(carried) if crc is None else crc
    sent = now_ms() if send_time is None else send_time
    length = _FIXED.size + len(tail)
    return _FIXED.pack(length, partition, index, term, code, priority, sent, store_time, crc, flag) + tail


def batch(items, **fields):
    """One BATCH_MESSAGE; an item is a dict with a body, and with what else it has."""
    parts = []
    for item in items:
        business_id = item.get("business_id", "").encode()
        part = struct.pack(">bhi", item.get("priority", 0), item.get("flag", 0), len(item["body"])) + item["body"]
        part += struct.pack(">i", len(business_id)) + business_id + attribute_field(item.get("attributes"))
        parts.append(struct.pack(">i", 4 + len(part)) + part)
    whole = struct.pack(">h", len(parts)) + b"".join(parts)
    return message(struct.pack(">i", 4 + len(whole)) + whole, flag=len(items), is_batch=True, **fields)


def read_message(cursor):
    """One MESSAGE as a dict: `carried` as on the wire, `body`, or for a batch `items`, as before compression."""
    begin = cursor.at
    length, partition, index, term, code, priority, sent, stored, crc, flag = _FIXED.unpack(cursor.take(_FIXED.size))
    demand(code >> 8 & 15 == 1, f"the systemCode {code:#06x} is not of version 1")
    demand(not code & 0xE000, f"the systemCode {code:#06x} has bits that mean nothing")
    carried = cursor.counted(">i")
    business_id, attribute_bytes = cursor.string(), cursor.counted(">h")
    extension, app = cursor.counted(">i"), cursor.string()
    demand(cursor.at - begin == length, f"a message of {cursor.at - begin} bytes says {length}")
    demand(crc in (0, -1, zlib.crc32(carried)), f"the CRC {crc:#x} is not that of the body")
    compression = COMPRESSIONS[code >> 4 & 7] if code & 1 else None
    opened = decompress(compression, carried)
    is_batch = bool(code & 1 << 12)
    items = read_batch(opened) if is_batch else None
    demand(items is None or flag == len(items), f"a batch whose flag is {flag} holds other than that")
    return {
        "partition": partition,
        "index": index,
        "term": term,
        "compression": compression,
        "is_ordered": bool(code & 2),
        "source": code >> 2 & 3,
        "is_ipv6": bool(code & 1 << 7),
        "priority": priority,
        "send_time": sent,
        "store_time": stored,
        "flag": flag,
        "carried": carried,
        "body": None if is_batch else opened,
        "items": items,
        "business_id": business_id,
        "attributes": read_attributes(attribute_bytes),
        "attribute_bytes": attribute_bytes,
        "extension": extension,
        "app": app,
    }


def read_batch(body):
    """The items of a batch's body after decompression."""
    cursor = Cursor(body)
    demand(cursor.number(">i") == len(body), f"the length of a batch of {len(body)} bytes is {body[:4].hex()}")
    items = []
    for _ in range(cursor.number(">h")):
        begin = cursor.at
        length, priority, flag = struct.unpack(">ibh", cursor.take(7))
        content, business_id, attribute_bytes = cursor.counted(">i"), cursor.counted(">i"), cursor.counted(">h")
        demand(cursor.at - begin == length, f"a batched message of {cursor.at - begin} bytes says {length}")
        items.append(
            {
                "priority": priority,
                "flag": flag,
                "body": content,
                "business_id": business_id.decode(),
                "attributes": read_attributes(attribute_bytes),
            }
        )
    cursor.finish()
    return items


def compress(kind, body):
    match kind:
        case None:
            return body
        case "zlib":
            return zlib.compress(body)
        case "zip":
            out = io.BytesIO()
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("0", body)
            return out.getvalue()
    return bytes(getattr(cramjam, kind).compress(body))


def decompress(kind, carried):
    match kind:
        case None:
            return carried
        case "zlib":
            stream = zlib.decompressobj()
            body = stream.decompress(carried)
            demand(stream.eof and not stream.unused_data, "a zlib body does not end where its stream ends")
            return body
        case "zip":
            with zipfile.ZipFile(io.BytesIO(carried)) as archive:
                names = archive.namelist()
                demand(len(names) == 1, f"a zip body has the entries {names}")
                return archive.read(names[0])
    return bytes(getattr(cramjam, kind).decompress(carried))


# Attributes.

_NAMED = {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}


def attribute_field(attributes):
    data = attributes if isinstance(attributes, bytes) else write_attributes(attributes or {})
    return struct.pack(">h", len(data)) + data


def write_attributes(attributes):
    lines = [f"{_escaped(key, is_key=True)}={_escaped(value, is_key=False)}" for key, value in attributes.items()]
    return "\n".join(lines).encode("ascii")


def _escaped(text, *, is_key):
    out = []
    for place, character in enumerate(text):
        if character in _NAMED:
            out.append("\\" + _NAMED[character])
        elif character in "\\=:#!" or (character == " " and (is_key or place == 0)):
            out.append("\\" + character)
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = struct.iter_unpack(">H", character.encode("utf-16-be"))
            out += [f"\\u{unit:04X}" for (unit,) in units]
    return "".join(out)


def read_attributes(data):
    """Java's properties text, character by character."""
    text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    entries = {}
    at = 0
    while at < len(text):
        if text[at] in " \t\f\n":
            at += 1
        elif text[at] in "#!":
            at = _end_of_line(text, at)
        else:
            key, at = _read_until(text, at, "=: \t\f\n")
            at = _skip_blanks(text, at)
            if text[at : at + 1] in ("=", ":"):
                at = _skip_blanks(text, at + 1)
            entries[key], at = _read_until(text, at, "\n")
    return entries


def _end_of_line(text, at):
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _skip_blanks(text, at):
    while text[at : at + 1] in (" ", "\t", "\f") or text[at : at + 2] == "\\\n":
        at += 2 if text[at] == "\\" else 1
    return at


def _read_until(text, at, ends):
    units = bytearray()
    while at < len(text) and text[at] not in ends:
        if text[at] != "\\":
            units += text[at].encode("utf-16-be")
            at += 1
        elif text[at + 1 : at + 2] == "\n":  # the line goes on below
            at += 2
            while text[at : at + 1] in (" ", "\t", "\f"):
                at += 1
        elif text[at + 1 : at + 2] == "u":
            digits = text[at + 2 : at + 6]
            demand(re.fullmatch("[0-9A-Fa-f]{4}", digits), f"the escape u{digits} in attributes")
            units += bytes.fromhex(digits)
            at += 6
        else:
            mark = text[at + 1 : at + 2]
            units += {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(mark, mark).encode("utf-16-be")
            at += 2
    return units.decode("utf-16-be"), at

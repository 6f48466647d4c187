"""The joyqueue dialect's bytes, made from the description of what JoyQueue's peers put on the wire.

A witness: it shares no line with LakeMQ nor with the other scripted client. Frames, messages, batches, attributes; the
commands are in `joyqueue_commands.py`.
"""

import io
import re
import socket
import struct
import time
import zipfile
import zlib

import cramjam

ONE_WAY, RECEIVE, PERSISTENCE, REPLICATION, ALL = range(5)
NONE, TIMEOUT, EXCEPTION, OTHER = range(4)  # how a message is acked
JMQ, KAFKA, MQTT, JOYQUEUE = range(4)  # where a message is from
RETRY_PARTITION = 32767

KNOWN_CODES = (
    set(range(10))
    | set(range(20, 37))
    | set(range(71, 77))
    | {91, 92, 93, 94, 101}
    | set(range(107, 118))
    | {131, 132, 134}
    | set(range(136, 151))
    | set(range(181, 194))
    | set(range(240, 246))
    | {250, 251, 252, 260}
)


class WrongBytesError(Exception):
    """A Java peer would fail, or go out of step, on what came."""


class Writer:
    """A payload being written; `null` is the length that nothing is written with."""

    def __init__(self, null=0):
        self.data = bytearray()
        self.null = null

    def byte(self, value):
        self.data += value.to_bytes(1, "big", signed=True)
        return self

    def boolean(self, value):
        return self.byte(1 if value else 0)

    def short(self, value):
        self.data += value.to_bytes(2, "big", signed=True)
        return self

    def int(self, value):
        self.data += value.to_bytes(4, "big", signed=True)
        return self

    def long(self, value):
        self.data += value.to_bytes(8, "big", signed=True)
        return self

    def string1(self, text):
        return self._counted(self.byte, text.encode())

    def string2(self, text):
        return self._counted(self.short, text.encode())

    def bytes4(self, data):
        return self._counted(self.int, data)

    def raw(self, data):
        self.data += data
        return self

    def array(self, values, write):
        self.short(len(values))
        for value in values:
            write(value)
        return self

    def _counted(self, length, data):
        length(len(data) if data else self.null)
        return self.raw(data)


class Reader:
    """A payload being read, field after field."""

    def __init__(self, data, version=4):
        self.view, self.version = memoryview(bytes(data)), version

    def raw(self, size):
        if size > len(self.view):
            raise WrongBytesError(f"{size} bytes are wanted, {len(self.view)} are left")
        taken, self.view = bytes(self.view[:size]), self.view[size:]
        return taken

    def byte(self):
        return int.from_bytes(self.raw(1), "big", signed=True)

    def boolean(self):
        return self.byte() != 0

    def short(self):
        return int.from_bytes(self.raw(2), "big", signed=True)

    def int(self):
        return int.from_bytes(self.raw(4), "big", signed=True)

    def long(self):
        return int.from_bytes(self.raw(8), "big", signed=True)

    def double(self):
        return struct.unpack(">d", self.raw(8))[0]

    def string1(self):
        return self._text(self.byte())

    def string2(self):
        return self._text(self.short())

    def bytes4(self):
        return self.raw(max(self.int(), 0))

    def array(self, read):
        return [read() for _ in range(self.short())]

    def code(self):
        code = self.int()
        if code not in KNOWN_CODES:
            raise WrongBytesError(f"Java knows no code {code}")
        return code

    def end(self):
        if self.view:
            raise WrongBytesError(f"{len(self.view)} bytes are left over: {bytes(self.view[:40]).hex()}")

    def _text(self, size):
        data = self.raw(max(size, 0))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise WrongBytesError(f"a string that is not UTF-8: {error}") from None


# Frames.


def frame(number, request_id, payload=b"", *, version=4, qos=1, send_time=None):
    """A request."""
    sent = now_ms() if send_time is None else send_time
    head = bytes.fromhex("cafebebe") + bytes([version, qos << 1])
    head += request_id.to_bytes(4, "big", signed=True) + number.to_bytes(1, "big", signed=True)
    head += sent.to_bytes(8, "big", signed=True)
    return (4 + len(head) + len(payload)).to_bytes(4, "big") + head + bytes(payload)


def read_ack(data):
    """(header as a dict, payload) of a whole frame."""
    reader = Reader(data)
    if reader.int() != len(data):
        raise WrongBytesError(f"a frame of {len(data)} bytes says {data[:4].hex()}")
    if reader.raw(4).hex() != "cafebebe":
        raise WrongBytesError(f"the magic is {data[4:8].hex()}")
    version, identity = reader.raw(2)
    if identity not in (1, 3, 5, 7):
        raise WrongBytesError(f"the identity of a response is {identity:#04x}")
    header = {"version": version, "qos": identity >> 1, "id": reader.int(), "type": reader.byte()}
    header |= {"send_time": reader.long(), "status": reader.raw(1)[0], "error": reader.string2()}
    if header["status"] not in KNOWN_CODES:
        raise WrongBytesError(f"Java knows no code {header['status']}")
    return header, bytes(reader.view)


def now_ms():
    return time.time_ns() // 1_000_000


# Messages.

MESSAGE_MAGIC = 0x1234
COMPRESSIONS = {"zip": 1, "zlib": 2, "snappy": 3}
_COMPRESSION_NAMES = {number: name for name, number in COMPRESSIONS.items()}


def message(
    body,
    *,
    partition=-1,
    index=0,
    term=0,
    priority=0,
    client_ip=("127.0.0.1", 0),
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
    source=JOYQUEUE,
    is_batch=False,
):
    """One MESSAGE as Java writes it; `attributes` is a dict, or the bytes themselves."""
    carried = _pack(body, compression)
    code = 0x0180 | (source << 2)
    code |= 0x0001 | COMPRESSIONS[compression] << 4 if compression else 0
    code |= 0x0002 if is_ordered else 0
    code |= 0x1000 if is_batch else 0
    out = Writer().short(partition).long(index).int(term).short(MESSAGE_MAGIC).short(code).byte(priority)
    out.raw(write_address(*client_ip)).long(now_ms() if send_time is None else send_time).int(store_time)
    out.long(zlib.crc32(carried) if crc is None else crc).short(flag)
    out.bytes4(carried).string1(business_id)
    _write_attribute_field(out, attributes)
    out.bytes4(extension).string1(app)
    return Writer().int(4 + len(out.data)).raw(out.data).data


def batch(items, **fields):
    """One batch; an item is a dict with a body, and with what else it has."""
    whole = Writer()
    for item in items:
        one = Writer().byte(item.get("priority", 0)).short(item.get("flag", 0)).bytes4(item["body"])
        one.string1(item.get("business_id", ""))
        _write_attribute_field(one, item.get("attributes"))
        whole.int(4 + len(one.data)).raw(one.data)
    return message(bytes(whole.data), flag=len(items), is_batch=True, **fields)


def python_message(body, *, partition=0, business_id="", send_time=None, flag=0, app=""):
    """One MESSAGE as joyqueue-python writes it: what it does not know is -1, and its address is no address."""
    out = Writer(null=-1).int(-1).short(partition).long(-1).int(-1).short(MESSAGE_MAGIC).short(0).byte(-1)
    out.int(12).raw(b"abcdefabcdef").long(now_ms() if send_time is None else send_time).int(1).long(-1).short(flag)
    return out.bytes4(body).string1(business_id).short(-1).int(-1).string1(app).data


def read_message(reader):
    """One MESSAGE as a dict: `carried` as on the wire, `body`, or for a batch `items`, as before compression."""
    before = len(reader.view)
    length, partition, index, term = reader.int(), reader.short(), reader.long(), reader.int()
    magic, code, priority = reader.short(), reader.short(), reader.byte()
    if magic != MESSAGE_MAGIC:
        raise WrongBytesError(f"a message has the magic {magic:#06x}")
    if code & 0xEF00 != 0x0100:
        raise WrongBytesError(f"a message has the systemCode {code:#06x}")
    address, sent, stored, crc, flag = reader.raw(16), reader.long(), reader.int(), reader.long(), reader.short()
    carried, business_id = reader.bytes4(), reader.string1()
    attribute_bytes = reader.raw(max(reader.short(), 0))
    extension, app = reader.bytes4(), reader.string1()
    if length != before - len(reader.view):
        raise WrongBytesError(f"a message of {before - len(reader.view)} bytes says {length}")
    if crc != zlib.crc32(carried):
        raise WrongBytesError(f"a message has the CRC {crc:#x}, its body {zlib.crc32(carried):#x}")
    kind = code >> 4 & 7
    if (kind and not code & 1) or (code & 1 and kind not in _COMPRESSION_NAMES):
        raise WrongBytesError(f"a message has the systemCode {code:#06x}: no such compression")
    compression = _COMPRESSION_NAMES[kind] if code & 1 else None
    is_batch, source = bool(code & 0x1000), code >> 2 & 3
    opened = _unpack(carried, compression)
    if is_batch and source != JOYQUEUE:
        raise WrongBytesError(f"Java drops a batch of source {source}")
    return {
        "partition": partition,
        "index": index,
        "term": term,
        "compression": compression,
        "is_ordered": bool(code & 2),
        "source": source,
        "is_ipv6": not code & 0x80,
        "priority": priority,
        "client_ip": read_address(address, is_ipv4=bool(code & 0x80)),
        "send_time": sent,
        "store_time": stored,
        "flag": flag,
        "carried": carried,
        "body": None if is_batch else opened,
        "items": read_batch(opened, flag) if is_batch else None,
        "business_id": business_id,
        "attributes": read_attributes(attribute_bytes),
        "attribute_bytes": attribute_bytes,
        "extension": extension,
        "app": app,
    }


def read_batch(body, count):
    """The items of a batch's body after decompression: back to back, to its end."""
    reader = Reader(body)
    items = []
    while reader.view:
        before = len(reader.view)
        length, priority, flag = reader.int(), reader.byte(), reader.short()
        content, business_id = reader.bytes4(), reader.string1()
        attributes = read_attributes(reader.raw(max(reader.short(), 0)))
        if length != before - len(reader.view):
            raise WrongBytesError(f"a batched message of {before - len(reader.view)} bytes says {length}")
        items.append(
            {
                "priority": priority,
                "flag": flag,
                "body": content,
                "business_id": business_id,
                "attributes": attributes,
            }
        )
    if len(items) != count:
        raise WrongBytesError(f"a batch of {count} holds {len(items)} messages")
    return items


def write_address(host, port):
    return port.to_bytes(2, "little") + socket.inet_aton(host) + bytes(10)


def read_address(data, *, is_ipv4):
    """(host, port); of an IPv6 address the 14 bytes that are there."""
    port = int.from_bytes(data[:2], "little")
    if not is_ipv4:
        return data[2:], port
    if any(data[6:]):
        raise WrongBytesError(f"the address {data.hex()} is not IPv4")
    return socket.inet_ntoa(data[2:6]), port


def _pack(body, compression):
    if compression == "zlib":
        return zlib.compress(body)
    if compression == "snappy":
        return bytes(cramjam.snappy.compress(body))
    if compression == "zip":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as out:
            out.writestr("0", body, zipfile.ZIP_DEFLATED)
        return archive.getvalue()
    return bytes(body)


def _unpack(carried, compression):
    if compression == "zlib":
        return zlib.decompress(carried)
    if compression == "snappy":
        return bytes(cramjam.snappy.decompress(carried))
    if compression == "zip":
        with zipfile.ZipFile(io.BytesIO(carried)) as archive:
            (entry,) = archive.infolist()
            return archive.read(entry)
    return carried


# Attributes.

_LINE = re.compile(r"[ \t\f]*(?:[#!][^\r\n]*|((?:[^\\\r\n]|\\(?:\r\n|[\s\S]|\Z))*))(?:\r\n|\r|\n|\Z)")
_GOES_ON = re.compile(r"(\\[^\r\n])|\\(?:\r\n|\r|\n|\Z)[ \t\f]*")
_ENTRY = re.compile(r"((?:[^\\=: \t\f]|\\[\s\S])*)[ \t\f]*[=:]?[ \t\f]*([\s\S]*)")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|([^u]))")
_TO_ESCAPE = re.compile(r"[\\=:#!]|[^ -~]")
_LETTERS = {"\t": r"\t", "\n": r"\n", "\r": r"\r", "\f": r"\f"}
_MEANINGS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _write_attribute_field(out, attributes):
    data = attributes if isinstance(attributes, bytes) else write_attributes(attributes or {})
    out.short(len(data)).raw(data)


def write_attributes(attributes):
    return b"\n".join(
        _escape(key).replace(b" ", rb"\ ") + b"=" + re.sub(b"^ ", rb"\\ ", _escape(value))
        for key, value in attributes.items()
    )


def _escape(text):
    def one(match):
        found = match[0]
        if found in "\\=:#!":
            return "\\" + found
        units = found.encode("utf-16-be").hex().upper()
        return _LETTERS.get(found) or re.sub("(....)", r"\\u\1", units)

    return _TO_ESCAPE.sub(one, text).encode("ascii")


def read_attributes(data):
    """Java's properties text, line by line."""
    entries = {}
    for match in _LINE.finditer(data.decode()):
        line = _GOES_ON.sub(lambda found: found[1] or "", match[1] or "")
        if line:
            key, value = _ENTRY.fullmatch(line).groups()
            entries[_plain(key)] = _plain(value)
    return entries


def _plain(text):
    def one(match):
        return chr(int(match[1], 16)) if match[1] else _MEANINGS.get(match[2], match[2])

    return _ESCAPE.sub(one, text).encode("utf-16-be", "surrogatepass").decode("utf-16-be")

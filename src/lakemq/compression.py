"""How a body may be compressed, and back again within a bound.

A body that would grow past the bound is an error, never memory: output goes into a buffer that is grown step by step
and never beyond it.
"""

import io
import struct
import zipfile
import zlib
from enum import Enum

import cramjam
import lz4.frame

from lakemq.errors import BadParameterError, SerializationError

# Some four-MiB bodies expand twentyfold; more than this is a mistake or an attack.
_LZ4_LEVEL = 1  # the library's own default takes 25 times as long for what cannot be compressed
EXPANDED_BYTES_MAX = 64 << 20

_ZIP_ENTRY = "0"  # the name JoyQueue's older clients give the single entry
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_ZIP_END = b"PK\5\6"
_ZIP_END_BYTES = 22
_ZIP_END_64 = b"PK\6\7"
_ZIP_DIRECTORY_BYTES_MAX = 1024
# zipfile answers damage with any of these, depending on the field that was hit
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
_ZSTD_REPEATED = 1  # a block that is one byte and a count
_ZSTD_WINDOW_BYTES_MAX = 8 << 20  # what level 19 and below ask for
_FIRST_ROOM_BYTES = 4096
_TINY_BYTES = 4096
_PIECE_BYTES = 1 << 20
_LZ4_RATIO_MAX = 255  # no lz4 block grows by more


class Compression(Enum):
    """A kind of compression; its number on the wire differs by dialect and lives with the layout."""

    NONE = "none"
    SNAPPY = "snappy"  # the framing format, not raw blocks
    ZIP = "zip"  # an archive with one entry
    ZLIB = "zlib"
    LZ4 = "lz4"  # the frame format
    ZSTD = "zstd"


def compress(kind: Compression, body: bytes | bytearray | memoryview) -> bytes:
    """The body as it is carried."""
    match kind:
        case Compression.NONE:
            return bytes(body)
        case Compression.SNAPPY:
            return bytes(cramjam.snappy.compress(body))
        case Compression.ZIP:
            return _zip(body)
        case Compression.ZLIB:
            return zlib.compress(body)
        case Compression.LZ4:
            return bytes(cramjam.lz4.compress(body, level=_LZ4_LEVEL))
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(body, level=3))


def decompress(
    kind: Compression, carried: bytes | bytearray | memoryview, bytes_max: int = EXPANDED_BYTES_MAX
) -> bytes:
    """The body as it was before; BadParameterError above `bytes_max`, SerializationError if it is not of that kind."""
    match kind:
        case Compression.NONE:
            if len(carried) > bytes_max:
                raise _too_large(bytes_max)
            return bytes(carried)
        case Compression.ZIP:
            return _unzip(carried, bytes_max)
        case Compression.ZLIB:
            return _inflate(carried, bytes_max)
        case Compression.SNAPPY:
            return _expand(cramjam.snappy.decompress_into, kind, carried, bytes_max)
        case Compression.LZ4:
            if len(carried) * _LZ4_RATIO_MAX <= bytes_max:
                return _expand_small_lz4(carried)
            return _expand(cramjam.lz4.decompress_into, kind, carried, bytes_max)
        case Compression.ZSTD:
            _check_zstd_windows(bytes(carried))
            return _expand(cramjam.zstd.decompress_into, kind, carried, bytes_max)


def _too_large(bytes_max: int) -> BadParameterError:
    return BadParameterError(f"the body expands beyond {bytes_max} bytes")


def _undecodable(kind: Compression, why: object) -> SerializationError:
    return SerializationError(f"the body is not {kind.value}: {why}")


def _inflate(carried: bytes | bytearray | memoryview, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(carried, bytes_max + 1)
    except zlib.error as error:
        raise _undecodable(Compression.ZLIB, error) from None
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    if not inflater.eof or inflater.unused_data:
        raise _undecodable(Compression.ZLIB, "it does not end where the stream ends")
    return body


def _zip(body: bytes | bytearray | memoryview) -> bytes:
    out = io.BytesIO()
    entry = zipfile.ZipInfo(_ZIP_ENTRY, _ZIP_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(entry, bytes(body))
    return out.getvalue()


def _unzip(carried: bytes | bytearray | memoryview, bytes_max: int) -> bytes:
    data = bytes(carried)
    _check_zip_directory(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (entry,) = archive.infolist()
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # the others allocate what the archive asks for before a byte is expanded
                raise _undecodable(Compression.ZIP, f"method {entry.compress_type} is not used here")
            with archive.open(entry) as stream:
                body = stream.read(bytes_max + 1)
    except _ZIP_ERRORS as error:
        raise _undecodable(Compression.ZIP, error) from None
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    return body


def _check_zip_directory(data: bytes) -> None:
    """One entry, by the record at the end: asked before the library lists what is said to be there."""
    end = data[-_ZIP_END_BYTES:]  # without a comment behind it: nobody writes one
    is_64_bit = data[-_ZIP_END_BYTES - 20 : -_ZIP_END_BYTES - 16] == _ZIP_END_64  # which would overrule this one
    one_entry = b"\1\0\1\0"  # on this disk, in all
    if len(end) < _ZIP_END_BYTES or not end.startswith(_ZIP_END) or is_64_bit or end[8:12] != one_entry:
        raise _undecodable(Compression.ZIP, "it is not an archive with one entry")
    if int.from_bytes(end[12:16], "little") > _ZIP_DIRECTORY_BYTES_MAX:
        raise _undecodable(Compression.ZIP, "its directory is not that of one entry")


def _expand(into, kind: Compression, carried: bytes | bytearray | memoryview, bytes_max: int) -> bytes:  # type: ignore[no-untyped-def]
    source = bytes(carried)
    room_bytes = min(bytes_max, max(_FIRST_ROOM_BYTES, 8 * len(source)))
    while True:
        room = bytearray(room_bytes)
        try:
            size = into(source, room)
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise _undecodable(kind, error) from None
            if room_bytes >= bytes_max:
                raise _too_large(bytes_max) from None
            room_bytes = min(bytes_max, room_bytes * 8)
        else:
            return bytes(memoryview(room)[:size])


def _expand_small_lz4(carried: bytes | bytearray | memoryview) -> bytes:
    """What cannot grow beyond the bound anyway: a tenth of the time that a decoder with a bound takes to set up."""
    try:
        if len(carried) <= _TINY_BYTES:
            body: bytes = lz4.frame.decompress(carried)
            return body
        # In pieces: asked for all at once, the library takes up to ten times what comes out.
        decoder, pieces = lz4.frame.LZ4FrameDecompressor(), []
        piece: bytes = decoder.decompress(bytes(carried), max_length=8 * len(carried))
        while piece:
            pieces.append(piece)
            piece = b"" if decoder.eof else decoder.decompress(b"", max_length=_PIECE_BYTES)
    except (RuntimeError, ValueError, EOFError) as error:
        raise _undecodable(Compression.LZ4, error) from None
    if not decoder.eof:
        raise _undecodable(Compression.LZ4, "it is cut short")
    return b"".join(pieces)


def _check_zstd_windows(data: bytes) -> None:
    """Each frame names the memory its decoder must hold: refuse before that is allocated."""
    at = 0
    while at < len(data):
        if data[at : at + 4] == _ZSTD_MAGIC:
            at = _after_zstd_frame(data, at + 4)
        elif data[at + 1 : at + 4] == _ZSTD_SKIPPABLE and data[at] & 0xF0 == 0x50:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        else:
            raise _undecodable(Compression.ZSTD, "no frame header")


def _after_zstd_frame(data: bytes, at: int) -> int:
    """Past the header, which is checked, and the blocks of one frame."""
    if at >= len(data):
        raise _undecodable(Compression.ZSTD, "no frame header")
    descriptor = data[at]
    is_single_segment = bool(descriptor & 0x20)
    if not is_single_segment and at + 1 < len(data):  # else the window is the content, which is bounded already
        exponent, mantissa = data[at + 1] >> 3, data[at + 1] & 7
        window_bytes = (1 << (10 + exponent)) // 8 * (8 + mantissa)
        if window_bytes > _ZSTD_WINDOW_BYTES_MAX:
            raise BadParameterError(f"the zstd body asks for a window of {window_bytes} bytes")
    size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    at += 1 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3] + size_bytes
    while True:
        block = int.from_bytes(data[at : at + 3], "little")
        is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
        if at + 3 > len(data):
            return len(data)  # cut short: the decoder says so
        at += 3 + (1 if kind == _ZSTD_REPEATED else size)
        if is_last:
            return at + (4 if descriptor & 4 else 0)

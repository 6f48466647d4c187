"""Ints, strings, bytes and counts in big-endian order, read with every length checked against the bytes that are left.

A Reader never allocates more than what is there; a Writer keeps large values by reference, so that a response is a
few slices and not a copy.
"""

import struct
from collections.abc import Iterable
from typing import Any

from lakemq.errors import BadParameterError, SerializationError
from lakemq.wire.dialect import Form

Buffer = bytes | bytearray | memoryview

_BYTE = struct.Struct(">b")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_LENGTHS = {1: _BYTE, 2: _SHORT, 4: _INT}
_LENGTH_MAX = {1: 127, 2: 32767, 4: 0x7FFFFFFF}
# Every element becomes an object: a frame full of the smallest would hold up all other connections for seconds.
ELEMENTS_MAX = 200_000
_KEPT_BY_REFERENCE_BYTES = 2048  # below this a copy is cheaper than one more buffer to send


class Reader:
    """A cursor over the bytes from `position` to `end`."""

    __slots__ = ("elements_left", "end", "form", "position", "view")

    def __init__(self, data: Buffer, form: Form, position: int = 0, end: int | None = None) -> None:
        self.view = memoryview(data)
        self.form = form
        self.position = position
        self.elements_left = ELEMENTS_MAX
        self.end = len(self.view) if end is None else end

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return self.end - self.position

    def fixed(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Values of fixed width, laid out as `layout` says."""
        at = self.position
        after = at + layout.size
        if after > self.end:
            raise SerializationError(f"byte {at}: {layout.size} bytes wanted, {self.left} are left")
        self.position = after
        return layout.unpack_from(self.view, at)

    def number(self, layout: struct.Struct) -> int:
        """One whole number."""
        value: int = self.fixed(layout)[0]
        return value

    def byte(self) -> int:
        """BYTE, signed."""
        return self.number(_BYTE)

    def short(self) -> int:
        """SHORT."""
        return self.number(_SHORT)

    def integer(self) -> int:
        """INT."""
        return self.number(_INT)

    def long(self) -> int:
        """LONG."""
        return self.number(_LONG)

    def boolean(self) -> bool:
        """BOOLEAN: whatever is not zero is true."""
        return self.number(_BYTE) != 0

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, by reference."""
        at = self.position
        if size > self.end - at:
            raise SerializationError(f"byte {at}: {size} bytes wanted, {self.left} are left")
        self.position = at + size
        return self.view[at : at + size]

    def sized(self, width: int) -> memoryview:
        """Bytes after their length, which has `width` bytes; a negative length is empty."""
        return self.take(max(self.number(_LENGTHS[width]), 0))

    def string(self, width: int) -> str:
        """Text after its length."""
        at = self.position
        size = self.fixed(_LENGTHS[width])[0]
        if size <= 0:
            return ""
        start = self.position
        after = start + size
        if after > self.end:
            raise SerializationError(f"byte {start}: {size} bytes wanted, {self.left} are left")
        self.position = after
        try:
            return str(self.view[start:after], "utf-8")
        except UnicodeDecodeError as error:
            raise SerializationError(f"byte {at}: text is not UTF-8: {error.reason}") from None

    def count(self, element_bytes_min: int) -> int:
        """An array's count, refused if that many elements cannot be in the bytes that are left."""
        at = self.position
        count = max(self.number(_SHORT), 0)
        if count * element_bytes_min > self.left:
            raise SerializationError(f"byte {at}: {count} elements cannot be in the {self.left} bytes left")
        self.elements_left -= count
        if self.elements_left < 0:
            raise SerializationError(f"byte {at}: the arrays of one payload have more than {ELEMENTS_MAX} elements")
        return count


class Writer:
    """Collects a frame; `parts()` gives it as few buffers."""

    __slots__ = ("_done", "_done_bytes", "_open", "form")

    def __init__(self, form: Form) -> None:
        self.form = form
        self._done: list[Buffer] = []
        self._done_bytes = 0
        self._open = bytearray()

    def __len__(self) -> int:
        return self._done_bytes + len(self._open)

    def fixed(self, layout: struct.Struct, *values: Any) -> None:
        """Values of fixed width, laid out as `layout` says."""
        try:
            self._open += layout.pack(*values)
        except struct.error as error:
            raise BadParameterError(f"{values!r} cannot be written: {error}") from None

    def byte(self, value: int) -> None:
        """BYTE, signed."""
        self.fixed(_BYTE, value)

    def short(self, value: int) -> None:
        """SHORT."""
        self.fixed(_SHORT, value)

    def integer(self, value: int) -> None:
        """INT."""
        self.fixed(_INT, value)

    def long(self, value: int) -> None:
        """LONG."""
        self.fixed(_LONG, value)

    def boolean(self, value: bool) -> None:
        """BOOLEAN."""
        self._open.append(1 if value else 0)

    def raw(self, data: Buffer) -> None:
        """Bytes as they are; large ones by reference, so they must not change until the frame has left."""
        if len(data) < _KEPT_BY_REFERENCE_BYTES:
            self._open += data
            return
        self._close()
        self._done.append(data)
        self._done_bytes += len(data)

    def raw_all(self, parts: Iterable[Buffer]) -> None:
        """The same for many: a fetch brings dozens of large ones."""
        done, size = self._done, 0
        for part in parts:
            length = len(part)
            if length < _KEPT_BY_REFERENCE_BYTES:
                self._open += part
            else:
                if self._open:
                    self._close()
                done.append(part)
                size += length
        self._done_bytes += size

    def sized(self, data: Buffer, width: int) -> None:
        """Bytes after their length, which has `width` bytes."""
        size = len(data)
        if size > _LENGTH_MAX[width]:
            raise BadParameterError(f"{size} bytes do not fit a length of {width} bytes")
        self.fixed(_LENGTHS[width], size or self.form.null_length)
        if size:
            self.raw(data)

    def string(self, text: str, width: int) -> None:
        """Text after its length."""
        try:
            self.sized(text.encode("utf-8"), width)
        except UnicodeEncodeError:
            raise BadParameterError(f"{text!r} holds half of a surrogate pair, which is not text") from None

    def count(self, count: int) -> None:
        """An array's count."""
        if count > _LENGTH_MAX[2]:
            raise BadParameterError(f"{count} elements do not fit an array; {_LENGTH_MAX[2]} do")
        self.fixed(_SHORT, count)

    def parts(self) -> list[Buffer]:
        """All that was written, in order."""
        self._close()
        return self._done

    def _close(self) -> None:
        if self._open:
            self._done.append(self._open)
            self._done_bytes += len(self._open)
            self._open = bytearray()

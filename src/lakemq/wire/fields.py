"""Field types: how a value is laid out in each dialect and version. A payload is a Struct of them.

Every type knows how to read and write itself and the fewest bytes it can take, which bounds array counts before
anything is allocated.
"""

import struct
from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar, cast

from lakemq.wire.buffer import Reader, Writer
from lakemq.wire.dialect import Form

T = TypeVar("T")


class FieldType(Protocol[T]):
    """How one value becomes bytes and comes back."""

    def read(self, reader: Reader) -> T:
        """The value at the reader's position."""
        ...

    def write(self, writer: Writer, value: T) -> None:
        """Append the value's bytes."""
        ...

    @property
    def bytes_min(self) -> int:
        """The fewest bytes a value can take in any form."""
        ...


class Fixed(Generic[T]):
    """A value of fixed width that `struct` has a letter for. Runs of them are read and written in one call."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.layout = struct.Struct(">" + code)
        self.bytes_min = self.layout.size

    def read(self, reader: Reader) -> T:
        value: T = reader.fixed(self.layout)[0]
        return value

    def write(self, writer: Writer, value: T) -> None:
        writer.fixed(self.layout, value)


class Number(Fixed[int]):
    """A signed whole number."""


class Boolean(Fixed[bool]):
    """One byte; whatever is not zero is true."""


class Double(Fixed[float]):
    """An IEEE-754 number of eight bytes."""


class String:
    """UTF-8 after its length; the length's width may differ by dialect."""

    def __init__(self, width: int = 2, joyqueue_width: int | None = None) -> None:
        self.width = width
        self.joyqueue_width = joyqueue_width or width
        self.bytes_min = min(self.width, self.joyqueue_width)

    def read(self, reader: Reader) -> str:
        return reader.string(self.joyqueue_width if reader.form.is_joyqueue else self.width)

    def write(self, writer: Writer, value: str) -> None:
        writer.string(value, self.joyqueue_width if writer.form.is_joyqueue else self.width)


class Bytes:
    """Bytes of any kind, after their length as an INT."""

    bytes_min = 4

    def read(self, reader: Reader) -> bytes:
        return bytes(reader.sized(4))

    def write(self, writer: Writer, value: bytes) -> None:
        writer.sized(value, 4)


class Array(Generic[T]):
    """A SHORT count, then the elements."""

    bytes_min = 2

    def __init__(self, element: FieldType[T]) -> None:
        self.element = element
        # Elements of fixed width, such as acks, come by the hundred: they are unpacked in one go.
        self._one_go = element if isinstance(element, Struct) and element.fixed is not None else None

    def read(self, reader: Reader) -> tuple[T, ...]:
        element = self.element
        count = reader.count(element.bytes_min)
        if self._one_go is not None:
            return self._one_go.read_many(reader, count)
        if count == 1:
            return (element.read(reader),)
        return tuple([element.read(reader) for _ in range(count)])

    def write(self, writer: Writer, value: Sequence[T]) -> None:
        writer.count(len(value))
        for element in value:
            self.element.write(writer, element)


class Pair:
    """Two values side by side, as a tuple."""

    def __init__(self, first: FieldType[Any], second: FieldType[Any]) -> None:
        self.first, self.second = first, second
        self.bytes_min = first.bytes_min + second.bytes_min

    def read(self, reader: Reader) -> tuple[Any, Any]:
        return self.first.read(reader), self.second.read(reader)

    def write(self, writer: Writer, value: tuple[Any, Any]) -> None:
        self.first.write(writer, value[0])
        self.second.write(writer, value[1])


class Struct(Generic[T]):
    """The fields of a dataclass one after the other, in the order given, which must be the class's own.

    Those whose metadata says `on_wire: False` come last in the class and are left out here.
    """

    def __init__(self, of: type[T], **types: FieldType[Any]) -> None:
        fields = dataclass_fields(of)  # type: ignore[arg-type]
        names = tuple(field.name for field in fields if field.metadata.get("on_wire", True))
        assert tuple(types) == names, f"{of.__name__} has {names}, its layout {tuple(types)}"
        self.of = of
        self.types = types
        self._runs = _runs_of(types)
        # One struct for the whole, if every field is of fixed width.
        is_fixed = bool(types) and all(isinstance(field, Fixed) for field in types.values())
        self.fixed = self._runs[0][1] if is_fixed else None
        self.bytes_min = sum(field.bytes_min for field in types.values())

    def read(self, reader: Reader) -> T:
        values: list[Any] = []
        for _, layout, field in self._runs:
            if layout is not None:
                values += reader.fixed(layout)
            else:
                values.append(field.read(reader))
        return self.of(*values)

    def read_many(self, reader: Reader, count: int) -> tuple[T, ...]:
        """`count` values of fixed width."""
        assert self.fixed is not None
        return tuple([self.of(*values) for values in self.fixed.iter_unpack(reader.take(count * self.fixed.size))])

    def write(self, writer: Writer, value: T) -> None:
        for names, layout, field in self._runs:
            if layout is not None:
                writer.fixed(layout, *[getattr(value, name) for name in names])
            else:
                field.write(writer, getattr(value, names[0]))


_Run = tuple[tuple[str, ...], struct.Struct | None, Any]


def _runs_of(types: dict[str, FieldType[Any]]) -> tuple[_Run, ...]:
    """The fields, with neighbours of fixed width joined into one layout."""
    runs: list[_Run] = []
    for is_fixed, group in groupby(types.items(), key=lambda item: isinstance(item[1], Fixed)):
        members = tuple(group)
        if is_fixed:
            layout = struct.Struct(">" + "".join(cast("Fixed[Any]", field).code for _, field in members))
            runs.append((tuple(name for name, _ in members), layout, None))
        else:
            runs += [((name,), None, field) for name, field in members]
    return tuple(runs)


class Present(Generic[T]):
    """A BOOLEAN that says whether the value follows; None where it does not."""

    bytes_min = 1

    def __init__(self, field: FieldType[T]) -> None:
        self.field = field

    def read(self, reader: Reader) -> T | None:
        return self.field.read(reader) if reader.boolean() else None

    def write(self, writer: Writer, value: T | None) -> None:
        writer.boolean(value is not None)
        if value is not None:
            self.field.write(writer, value)


class ByDialect(Generic[T]):
    """One value, laid out differently in the two dialects."""

    def __init__(self, documented: FieldType[T], joyqueue: FieldType[T]) -> None:
        self.documented, self.joyqueue = documented, joyqueue
        self.bytes_min = min(documented.bytes_min, joyqueue.bytes_min)

    def read(self, reader: Reader) -> T:
        return self._of(reader.form).read(reader)

    def write(self, writer: Writer, value: T) -> None:
        self._of(writer.form).write(writer, value)

    def _of(self, form: Form) -> FieldType[T]:
        return self.joyqueue if form.is_joyqueue else self.documented


class JoyqueueOnly(Generic[T]):
    """A field that only JoyQueue's dialect has, from some header version on; elsewhere it reads as the default."""

    bytes_min = 0

    def __init__(self, field: FieldType[T], default: T, since: int = 1) -> None:
        self.field, self.default, self.since = field, default, since

    def read(self, reader: Reader) -> T:
        return self.field.read(reader) if self._is_there(reader.form) else self.default

    def write(self, writer: Writer, value: T) -> None:
        if self._is_there(writer.form):
            self.field.write(writer, value)

    def _is_there(self, form: Form) -> bool:
        return form.is_joyqueue and form.layout_version >= self.since


BYTE = Number("b")
SHORT = Number("h")
INT = Number("i")
LONG = Number("q")
BOOLEAN = Boolean("?")
DOUBLE = Double("d")
STRING = String()
BYTES = Bytes()
SHORT_STRING = String(2, joyqueue_width=1)  # the few that JoyQueue writes with a one-byte length

"""The messages a command carries: bytes in a known layout with their count, not objects.

A block goes from the socket to the journal and from the journal to the socket without being taken apart; only where
the two sides speak different dialects is it laid out anew.
"""

from collections.abc import Iterable

from lakemq.record import MESSAGE_BYTES_MIN, measure
from lakemq.wire import joyqueue_message
from lakemq.wire.buffer import Buffer, Reader, Writer
from lakemq.wire.dialect import Dialect
from lakemq.wire.joyqueue_message import NO_ADDRESS


class MessageBlock:
    """Some messages back to back, in the layout of `dialect`; the stored layout is the documented one.

    `client_address` says whose they are, in 16 bytes as JoyQueue writes an address; only its layout has room for it.
    """

    __slots__ = ("client_address", "count", "dialect", "parts")

    def __init__(
        self,
        count: int,
        parts: tuple[Buffer, ...] = (),
        dialect: Dialect = Dialect.DOCUMENTED,
        client_address: bytes = NO_ADDRESS,
    ) -> None:
        self.count = count
        self.parts = parts
        self.dialect = dialect
        self.client_address = client_address

    def __repr__(self) -> str:
        return f"MessageBlock({self.count} messages, {len(self)} bytes, {self.dialect.value})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageBlock):
            return NotImplemented
        return (self.count, self.dialect) == (other.count, other.dialect) and self.joined() == other.joined()

    def __hash__(self) -> int:
        return hash((self.count, self.dialect))  # not the bytes, which may be patched

    def __len__(self) -> int:
        """Its size in bytes."""
        return sum(map(len, self.parts))

    def joined(self) -> Buffer:
        """All bytes in one buffer: the only part as it is, several copied together."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def stored(self, is_ipv6: bool | None = None) -> "MessageBlock":
        """The same messages in the stored layout; `is_ipv6` is what the server knows of a JoyQueue sender."""
        if self.dialect is Dialect.DOCUMENTED:
            return self
        anew = bytearray(joyqueue_message.to_stored(self.joined(), self.count, is_ipv6))  # to be stamped
        return MessageBlock(self.count, (anew,), Dialect.DOCUMENTED, self.client_address)

    def in_dialect(self, dialect: Dialect) -> "MessageBlock":
        """The same messages in the layout of that dialect."""
        if self.dialect is dialect:
            return self
        if dialect is Dialect.DOCUMENTED:
            return self.stored()
        anew = joyqueue_message.from_stored(self.joined(), self.count, self.client_address)
        return MessageBlock(self.count, (anew,), dialect, self.client_address)


EMPTY = MessageBlock(0)


def join(blocks: Iterable[MessageBlock], dialect: Dialect) -> MessageBlock:
    """One block of many, in the layout of that dialect."""
    laid_out = [block.in_dialect(dialect) for block in blocks]
    parts = tuple(part for block in laid_out for part in block.parts)
    return MessageBlock(sum(block.count for block in laid_out), parts, dialect)


class Messages:
    """The field type: an ARRAY of MESSAGE, kept as one block."""

    bytes_min = 2

    def read(self, reader: Reader) -> MessageBlock:
        if reader.form.is_joyqueue:
            count = reader.count(joyqueue_message.MESSAGE_BYTES_MIN)
            end = joyqueue_message.measure(reader.view, reader.position, reader.end, count)
        else:
            count = reader.count(MESSAGE_BYTES_MIN)
            end = measure(reader.view, reader.position, reader.end, count)
        parts = (reader.view[reader.position : end],) if count else ()
        reader.position = end
        return MessageBlock(count, parts, reader.form.dialect)

    def write(self, writer: Writer, value: MessageBlock) -> None:
        writer.count(value.count)
        writer.raw_all(value.in_dialect(writer.form.dialect).parts)


MESSAGES = Messages()

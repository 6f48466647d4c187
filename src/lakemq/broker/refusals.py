"""What can be said of a send that was refused: key, tags and id of its first message. It has no place to be known by.

The text is read again by the trace (`pipeline/transforms/trace.py`), so its form is fixed:

    188: why it was refused [key=c-7] [tags=paid] [id=order-1]
"""

from typing import NamedTuple

from lakemq.attributes import TAGS, decode_attributes
from lakemq.delivery.uniq import UNIQ_ID
from lakemq.errors import LakeMQError
from lakemq.record import Buffer, MessageFields, read_fields
from lakemq.wire import joyqueue_message
from lakemq.wire.buffer import Reader
from lakemq.wire.dialect import Dialect, Form

_CHARACTERS_MAX = 100
_FORM = Form(Dialect.JOYQUEUE)


class Described(NamedTuple):
    """The first message of a refused send."""

    partition: int
    sent_ms: int
    text: str


NOTHING = Described(-1, 0, "")


def describe(messages: Buffer, is_joyqueue: bool) -> Described:
    """What can be said of it; nothing of one that cannot be read, which may be why it was refused."""
    try:
        fields = _first(messages, is_joyqueue)
        attributes = decode_attributes(fields.attributes)
        key = fields.business_id.decode()
    except (LakeMQError, ValueError, IndexError):
        return NOTHING
    named = ("key", key), ("tags", attributes.get(TAGS, "")), ("id", attributes.get(UNIQ_ID, ""))
    parts = [f" [{name}={_plain(value)}]" for name, value in named if value]
    return Described(fields.partition, fields.send_time_ms, "".join(parts))


def _first(messages: Buffer, is_joyqueue: bool) -> MessageFields:
    if is_joyqueue:
        return joyqueue_message.read(Reader(messages, _FORM))[0]
    return read_fields(messages)[0]


def _plain(value: str) -> str:
    """Without what would end it early."""
    return value[:_CHARACTERS_MAX].replace("[", "(").replace("]", ")")

"""Dead letters as operators see them: the row, and the message that it refers to as far as it can be read."""

import base64
from collections.abc import Callable
from typing import Any

from lakemq.attributes import TAGS
from lakemq.delivery.settlement import DeadLetter
from lakemq.errors import LakeMQError
from lakemq.message import Message

_READS_MAX = 2000  # messages opened for one answer
_READ_BYTES_MAX = 4 << 20  # of their bodies


class Looking:
    """Opens messages, as many as one answer may cost."""

    def __init__(self, read: Callable[[DeadLetter], tuple[Message, bytes]]) -> None:
        self._read = read
        self._reads = 0
        self._bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether it has been enough."""
        return self._reads >= _READS_MAX or self._bytes >= _READ_BYTES_MAX

    def at(self, row: DeadLetter) -> tuple[Message | None, str]:
        """Its message; or why there is none to be seen."""
        self._reads += 1
        try:
            message, _ = self._read(row)
        except LakeMQError as error:
            return None, str(error)
        self._bytes += len(message.body)
        return message, ""


def brief(row: DeadLetter, message: Message | None) -> dict[str, Any]:
    """A line of a list. What was over a rate never got an offset."""
    return {
        "id": row.id,
        "cause": row.cause,
        "reason": row.reason,
        "topic": row.topic_name,
        "app": row.app,
        "partition": row.partition,
        "offset": row.message_index if row.cause != "rate" else None,
        "attempts": row.attempts,
        "first_ms": row.first_ms,
        "died_ms": row.died_ms,
        "key": message.business_id if message is not None else None,
        "tags": message.attributes.get(TAGS, "") if message is not None else None,
        "size": len(message.body) if message is not None else None,
    }


def whole(row: DeadLetter, message: Message | None, trouble: str) -> dict[str, Any]:
    """All of it; the body as base64, and as text if it is UTF-8."""
    shown = {**brief(row, message), "trouble": trouble}
    if message is None:
        empty = dict.fromkeys(("attributes", "sender", "priority", "sent_ms", "stored_ms", "body", "text"))
        return {**shown, **empty}
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = None
    return {
        **shown,
        "attributes": dict(message.attributes),
        "sender": message.app,
        "priority": message.priority,
        "sent_ms": message.send_time_ms,
        "stored_ms": message.send_time_ms + message.store_time_ms,
        "body": base64.b64encode(message.body).decode(),
        "text": text,
    }

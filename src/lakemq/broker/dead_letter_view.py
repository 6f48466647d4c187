"""Dead letters as operators see them: the row, and the message that it refers to as far as it can be read."""

import base64
from typing import Any

from lakemq.attributes import TAGS
from lakemq.broker.opening import Opening
from lakemq.delivery.settlement import NEVER_STORED, DeadLetter
from lakemq.errors import LakeMQError
from lakemq.message import Message

_MESSAGES_MAX = 2000  # opened for one answer: a few hundredths of a second
_BYTES_MAX = 8 << 20  # of records read, and of bodies told


class Looking:
    """Opens messages, as many as one answer may cost."""

    def __init__(self, opening: Opening, written_position: int) -> None:
        self._opening = opening
        self._written_position = written_position
        self._before = opening.cost
        self._rows = 0
        self._bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether it has been enough."""
        spent = self._opening.cost
        return (
            self._rows + spent.messages - self._before.messages >= _MESSAGES_MAX
            or self._bytes + spent.bytes - self._before.bytes >= _BYTES_MAX
        )

    def at(self, row: DeadLetter) -> tuple[Message | None, str]:
        """Its message; or why there is none to be seen."""
        self._rows += 1
        if row.position >= self._written_position:
            return None, "it is being written"
        try:
            message, _ = self._opening.read(row.position, row.message_index)
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
        "offset": row.message_index if row.cause not in NEVER_STORED else None,
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

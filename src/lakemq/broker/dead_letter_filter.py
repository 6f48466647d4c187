"""Which dead letters an operator means: by where they were meant to go, why they are here, when they died, and text."""

from dataclasses import dataclass, fields

from lakemq.delivery.settlement import CAUSES, DeadLetter
from lakemq.errors import BadParameterError

_TEXT_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """None matches all. Times are when they died; `until_ms` and `last_id` are included; text is in reason or key."""

    topic: str | None = None
    app: str | None = None
    cause: str | None = None
    text: str | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    first_id: int | None = None
    last_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("topic", "app", "cause", "text"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise BadParameterError(f"{name} is text, not {value!r}")
        for name in ("from_ms", "until_ms", "first_id", "last_id"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise BadParameterError(f"{name} is a whole number, not {value!r}")
        if self.cause is not None and self.cause not in CAUSES:
            raise BadParameterError(f"a cause is one of {', '.join(CAUSES)}, not {self.cause!r}")
        if self.text is not None and len(self.text) > _TEXT_CHARACTERS_MAX:
            raise BadParameterError(f"text has {len(self.text)} characters; {_TEXT_CHARACTERS_MAX} are allowed")

    def is_text_in(self, *texts: str) -> bool:
        """Whether the wanted text is in one of these; small and capital letters are the same."""
        wanted = self.text.casefold() if self.text is not None else ""
        return any(wanted in text.casefold() for text in texts)

    def among(self, rows: list[DeadLetter]) -> list[DeadLetter]:
        """Those that match, all but the text, which may be in the message."""
        if self.topic is not None:
            rows = [row for row in rows if row.topic_name == self.topic]
        if self.app is not None:
            rows = [row for row in rows if row.app == self.app]
        if self.cause is not None:
            rows = [row for row in rows if row.cause == self.cause]
        first_id, last_id, from_ms, until_ms = self.first_id, self.last_id, self.from_ms, self.until_ms
        if first_id is not None:
            rows = [row for row in rows if row.id >= first_id]
        if last_id is not None:
            rows = [row for row in rows if row.id <= last_id]
        if from_ms is not None:
            rows = [row for row in rows if row.died_ms >= from_ms]
        if until_ms is not None:
            rows = [row for row in rows if row.died_ms <= until_ms]
        return rows

    def __str__(self) -> str:
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        return ", ".join(f"{name} {value}" for name, value in said.items() if value is not None) or "all"

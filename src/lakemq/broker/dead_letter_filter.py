"""Which dead letters an operator means: by where they were meant to go, why they are here, when they died, and text."""

from collections.abc import Iterable
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

    def matches_row(self, row: DeadLetter) -> bool:
        """All but the text, which may be in the message."""
        return (
            self.topic in (None, row.topic_name)
            and self.app in (None, row.app)
            and self.cause in (None, row.cause)
            and (self.from_ms is None or row.died_ms >= self.from_ms)
            and (self.until_ms is None or row.died_ms <= self.until_ms)
            and (self.first_id is None or row.id >= self.first_id)
            and (self.last_id is None or row.id <= self.last_id)
        )

    def is_text_in(self, *texts: str) -> bool:
        """Whether the wanted text is in one of these; small and capital letters are the same."""
        wanted = self.text.casefold() if self.text is not None else ""
        return any(wanted in text.casefold() for text in texts)

    def among(self, rows: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Those that match, whatever their text."""
        return [row for row in rows if self.matches_row(row)]

    def __str__(self) -> str:
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        return ", ".join(f"{name} {value}" for name, value in said.items() if value is not None) or "all"

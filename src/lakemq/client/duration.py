"""Spans and moments of time as users write them: "200ms", "5s", "-10m", seconds, timedelta, datetime."""

import re
from datetime import datetime, timedelta

from lakemq.errors import BadParameterError

Duration = str | int | float | timedelta

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")


def duration_ms(span: Duration) -> int:
    """Milliseconds; a bare number is seconds. Never negative."""
    if isinstance(span, timedelta):
        value = span.total_seconds() * 1000
    elif isinstance(span, str):
        found = _TEXT.fullmatch(span)
        if found is None:
            raise BadParameterError(f"{span!r} is not a span of time such as 200ms, 5s, 10m, 2h or 1d")
        value = float(found[1]) * _UNIT_MS[found[2]]
    elif isinstance(span, int | float) and not isinstance(span, bool):
        value = span * 1000
    else:
        raise BadParameterError(f"{span!r} is not a span of time such as 5, '200ms' or a timedelta")
    if not 0 <= value < 1 << 53:
        raise BadParameterError(f"{span!r} is not a span of time that can pass")
    return round(value)


def moment_ms(moment: str | datetime, wall_ms: int) -> int:
    """Milliseconds since 1970: of a datetime (without a zone: local time), or of "-10m", which is that long ago."""
    if isinstance(moment, datetime):
        return round(moment.timestamp() * 1000)
    if moment.startswith("-"):
        return wall_ms - duration_ms(moment[1:])
    try:
        return round(datetime.fromisoformat(moment).timestamp() * 1000)
    except ValueError:
        raise BadParameterError(f"{moment!r} is not a moment such as '-10m' or '2024-05-01T12:00:00'") from None

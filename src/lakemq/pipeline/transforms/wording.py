"""Values as people read them: spans, moments, and text that others chose."""

from datetime import UTC, datetime

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def span_text(ms: float) -> str:
    """Milliseconds in the unit that suits them: 12 ms, 1.2 s, 3 min 5 s, 2 h 10 min."""
    if ms < 0:
        return f"-{span_text(-ms)}"
    if ms < 1000:
        return f"{ms:.0f} ms" if ms >= 10 or ms == int(ms) else f"{ms:.1f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s" if ms < 59_950 else "60 s"
    whole = round(ms / 1000) * 1000
    place = next(place for place, (size, _) in enumerate(_UNITS) if whole >= size)
    (size, unit), (less_size, less_unit) = _UNITS[place], _UNITS[place + 1]
    less = whole % size // less_size
    return f"{whole // size:,} {unit} {less} {less_unit}" if less else f"{whole // size:,} {unit}"


def utc(at: datetime) -> datetime:
    """A moment of a collected row, in UTC: Spark gives it without a zone, in local time."""
    return at.astimezone(UTC)


def printable(text: str) -> str:
    """Text with what a terminal or a page would obey shown instead: escape sequences, changes of direction."""
    return text if text.isprintable() else "".join(_shown(one) for one in text)


def _shown(one: str) -> str:
    return one if one.isprintable() else one.encode("unicode_escape").decode("ascii")

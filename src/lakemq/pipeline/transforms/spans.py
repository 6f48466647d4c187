"""Spans and moments of time: as users write them, and as Spark takes them."""

import re
from datetime import UTC, datetime

from pyspark.sql import Column
from pyspark.sql import functions as sf

from lakemq.client.duration import duration_ms
from lakemq.errors import BadParameterError
from lakemq.pipeline.errors import OptionError

_SPARK = re.compile(r"(\d+ (microsecond|millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE)


def span(text: str) -> str:
    """A span for Spark, of "1 minute" or "90s"; OptionError if it is none, or has no length."""
    if _SPARK.fullmatch(text.strip()) and re.search(r"\b0*[1-9]", text):
        return text.strip()
    try:
        ms = duration_ms(text)
    except BadParameterError:
        ms = 0
    if ms == 0:
        raise OptionError(f"{text!r} is not a span of time", 'Write it as "1 minute", "90s" or "2h"')
    return f"{ms} milliseconds"


def slot(every: str) -> Column:
    """`at`: when the span began in which `timestamp` lies."""
    return sf.window("timestamp", span(every)).getField("start").alias("at")


def moment(at: datetime | str) -> datetime:
    """A moment in UTC, of a datetime or ISO text; without a zone it is local time, as everywhere in Python."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            raise OptionError(f"{at!r} is not a moment", 'Write it as "2026-01-31T12:00:00+00:00"') from None
    return at.astimezone(UTC)

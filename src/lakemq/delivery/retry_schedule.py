"""When a message that failed is tried again."""

from lakemq.errors import BadParameterError

# RocketMQ's levels for retries: its delay levels without the first two, which leave nobody time to recover.
LEVELS_MS = tuple(
    seconds * 1000 for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
SCHEDULES = ("power", "levels")


def retry_delay_ms(schedule: str, attempt: int, delay_max_ms: int, *, first_ms: int = 1000, factor: int = 3) -> int:
    """How long to wait after the `attempt`-th failure, the first being 1.

    "power" is JMQ's rule, 3^(k-1) s; with factor 2 it is JoyQueue's. "levels" is RocketMQ's table.
    """
    if schedule == "levels":
        delay_ms = LEVELS_MS[min(attempt, len(LEVELS_MS)) - 1]
    elif schedule == "power":
        # Beyond 64 steps any factor but 1 is past every maximum: no need for large numbers.
        delay_ms = first_ms * factor ** min(attempt - 1, 64)
    else:
        raise BadParameterError(f"a retry schedule is {' or '.join(SCHEDULES)}, not {schedule!r}")
    return min(delay_ms, delay_max_ms)

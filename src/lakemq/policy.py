"""Producer and consumer policies as values: what an operator allows and wants of an app on a topic."""

from dataclasses import dataclass, field
from typing import Any


def _own(default: Any) -> Any:
    """A field that clients are not told of."""
    return field(default=default, metadata={"on_wire": False})


@dataclass(frozen=True, slots=True)
class ProducerPolicy:
    """How an app may send to a topic."""

    is_nearby: bool = False
    is_single: bool = False
    is_archive: bool = False
    # Keyed by broker id towards documented clients, by partition group id towards JoyQueue's: decimal text.
    weights: tuple[tuple[str, int], ...] = ()
    black_list: tuple[str, ...] = ()
    timeout_ms: int = 2000
    is_forbidden: bool = _own(False)  # the app may send nothing there, for the time being
    parks_over_rate: bool = _own(False)  # what is over the app's rate becomes a dead letter instead of being refused


@dataclass(frozen=True, slots=True)
class ConsumerPolicy:
    """How an app may receive from a topic."""

    is_nearby: bool = False
    is_paused: bool = False
    is_archive: bool = False
    is_retry: bool = True
    is_sequential: bool = False
    ack_timeout_ms: int = 300_000
    batch_size: int = 10
    is_concurrent: bool = False
    concurrent_prefetch_size: int = 1
    delay_ms: int = 0
    black_list: tuple[str, ...] = ()
    error_times: int = 3
    partitions_max: int = 0x7FFFFFFF
    retry_read_probability: int = 20
    retry_times: int = _own(16)  # after the first delivery; when the last has failed it is a dead letter
    retry_schedule: str = _own("power")  # first · factor^(k-1) after the k-th failure, or RocketMQ's "levels"
    retry_first_ms: int = _own(1000)
    retry_factor: int = _own(3)
    retry_delay_max_ms: int = _own(7_200_000)
    is_forbidden: bool = _own(False)  # the app may receive nothing from there, for the time being
    only_region: str = _own("")  # consumption across data centres: consumers of this region receive, no others
    filter: str = _own("")  # which messages it wants (delivery/filters.py); empty: all

"""Producer and consumer policies as values: what an operator allows and wants of an app on a topic."""

from dataclasses import dataclass


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

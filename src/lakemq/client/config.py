"""All settings of a client: what the user passed, then `LAKEMQ_…` variables, then the defaults here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from lakemq.client.duration import Duration, duration_ms
from lakemq.compression import Compression
from lakemq.errors import BadParameterError
from lakemq.message import Qos
from lakemq.names import app_name
from lakemq.wire.frame import FRAME_BYTES_MAX

Acks = Literal["flush", "write", "receive", "none"]
Compressions = Literal["lz4", "zstd", "snappy", "zlib", "none"]
SelectorName = Literal["weighted_random", "round_robin", "hash"]
Selector = Callable[[str, str | None, Sequence[int]], int]
"""Given topic, key (None without one) and the partitions that can be written: the partition to send to."""

QOS_OF_ACKS: dict[str, Qos] = {"flush": Qos.FLUSH, "write": Qos.WRITE, "receive": Qos.RECEIVE, "none": Qos.NO}
COMPRESSIONS = {kind.value: kind for kind in Compression if kind is not Compression.ZIP}


class Settings(TypedDict, total=False):
    """The finer settings that `connect` takes by keyword: fields of ClientConfig, where each is explained."""

    tries: int
    retry_unknown: bool
    batch_bytes: int
    batch_count: int
    linger_ms: int
    buffer_bytes: int
    buffer_count: int
    delivery_timeout_ms: int
    in_flight_max: int
    in_flight_bytes_max: int
    connect_timeout_ms: int
    heartbeat_ms: int
    metadata_ms: int
    backoff_first_ms: int
    backoff_max_ms: int
    ack_linger_ms: int
    max_processing_ms: int
    local_retries: int
    open_bytes_max: int
    outbox_bytes_max: int
    compress_bytes_min: int
    frame_bytes_max: int
    watcher: bool
    spin_us: int
    admin_url: str
    admin_token: str


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings, checked."""

    app: str = "default"  # who produces and consumes; the token belongs to it
    token: str = ""
    namespace: str = ""  # put before topics that name none
    region: str = ""  # brokers nearby are told by it
    acks: Acks = "flush"  # when the broker confirms: synced, written, received, or not at all
    timeout_ms: int = 5000  # bounds a call as a whole, all its tries included
    compression: Compression = Compression.LZ4
    compress_bytes_min: int = 100  # smaller bodies are sent as they are
    selector: SelectorName | Selector | None = None  # None: at random by weight; with a key, by its hash
    tries: int = 3  # requests for one message that may have reached the journal or were refused by a busy broker
    # Whether a message whose outcome is unknown is sent again: at least once. False: at most once, the error is raised
    # instead; messages with a uniq_id are sent again in either case, because the broker keeps one copy.
    retry_unknown: bool = True
    batch_bytes: int = 256 << 10  # a batch of send_soon is sent when it is this large; larger ones arrive later
    batch_count: int = 1000
    linger_ms: int = 5  # or this old
    buffer_bytes: int = 32 << 20  # of messages not yet confirmed; memory may be twice this
    buffer_count: int = 200_000
    delivery_timeout_ms: int = 30_000  # of a batch of send_soon, from when it was full or old enough
    in_flight_max: int = 64  # requests per connection; more helps only where the way is long
    in_flight_bytes_max: int = 16 << 20
    connect_timeout_ms: int = 3000
    heartbeat_ms: int = 30_000  # an idle connection says that it is there
    metadata_ms: int = 30_000  # after this, what is known of a topic is asked for again
    backoff_first_ms: int = 50
    backoff_max_ms: int = 1000  # how late a broker that came back is noticed, at the most
    ack_linger_ms: int = 100  # acks are collected for this long; what a crash repeats is what was done meanwhile
    max_processing_ms: int = 600_000  # leases are extended up to this age; 0: never
    local_retries: int = 0  # of handlers that name no number: tries on the spot before the broker delivers it again
    # Of bodies that one `receive`, or a handler's messages in hand, hold expanded at a time; at least one message.
    open_bytes_max: int = 32 << 20
    outbox_bytes_max: int = 64 << 20  # held in memory, too
    frame_bytes_max: int = FRAME_BYTES_MAX
    # Of the blocking client: whether it may have a thread that sends batches when they are due and extends leases.
    # False: both happen only while a thread of the user's is in a call.
    watcher: bool = True
    # Of the blocking client: looks for an answer this long before it sleeps, while answers come that fast; 0: never.
    spin_us: int = 300
    admin_url: str = ""
    admin_token: str = ""

    def __post_init__(self) -> None:
        app_name(self.app)
        if self.acks not in QOS_OF_ACKS:
            raise BadParameterError(f"acks={self.acks!r} is not one of {', '.join(QOS_OF_ACKS)}")
        for name in (
            "tries",
            "batch_bytes",
            "batch_count",
            "buffer_bytes",
            "buffer_count",
            "in_flight_max",
            "open_bytes_max",
        ):
            if getattr(self, name) < 1:
                raise BadParameterError(f"{name} must be at least 1")
        for name in ("spin_us", "local_retries"):
            if getattr(self, name) < 0:
                raise BadParameterError(f"{name} must be at least 0")
        if self.batch_count > 32767:
            raise BadParameterError("batch_count: a batch holds at most 32767 messages")

    def full_topic(self, topic: str) -> str:
        """The topic with the namespace that it belongs to."""
        return f"{self.namespace}.{topic}" if self.namespace and "." not in topic else topic

    def full_app(self, group: str | None) -> str:
        """The app that progress is kept for."""
        return f"{self.app}.{group}" if group else self.app


def make_config(
    environment: Mapping[str, str],
    *,
    app: str | None,
    token: str | None,
    namespace: str,
    region: str,
    acks: Acks,
    timeout: Duration,
    compression: str,
    selector: SelectorName | Selector | None,
    settings: Settings,
) -> ClientConfig:
    """The settings of one client; an unknown one is a TypeError."""
    if compression not in COMPRESSIONS:
        raise BadParameterError(f"compression={compression!r} is not one of {', '.join(COMPRESSIONS)}")
    return ClientConfig(
        app=app or environment.get("LAKEMQ_APP") or "default",
        token=token or environment.get("LAKEMQ_TOKEN") or "",
        namespace=namespace,
        region=region,
        acks=acks,
        timeout_ms=duration_ms(timeout),
        compression=COMPRESSIONS[compression],
        selector=selector,
        **settings,
    )

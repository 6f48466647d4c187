"""BrokerConfig: what an operator decides about one broker. Caps and rates are in `limits.py`."""

from dataclasses import dataclass, field

from lakemq.broker.limits import BrokerLimits
from lakemq.delivery.delays import DelayLimits
from lakemq.delivery.transactions import TransactionLimits
from lakemq.storage.retention import RetentionPolicy

ASSIGNOR = "even"


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """Who copies archived topics to the lake, and how long the broker waits for it."""

    app: str = "lakemq-archive"
    # Further behind than so many bytes of the journal, retention does not wait for it any more. 0: it waits for ever.
    lag_bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Times in milliseconds."""

    broker_id: int = 0
    group_id: int = 0  # the partition group this broker holds
    group_ids: tuple[int, ...] = ()  # over which new partitions are spread; empty: this broker's only
    owns_metadata: bool = True  # else another broker's word counts, and is handed in as MetadataGiven
    data_center: str = ""
    # What clients are told to connect to; empty: the address they connected to.
    advertised_host: str = ""
    advertised_port: int = 0
    # Topics, apps and subscriptions are made on first use, and any token will do.
    creates_missing: bool = False
    partitions_default: int = 4
    batch_size_default: int = 1000
    admin_app: str = ""  # may speak for every app
    assignor: str = ASSIGNOR
    # A client may ask for its own.
    produce_timeout_ms: int = 5000
    long_poll_max_ms: int = 60_000
    session_timeout_ms: int = 60_000
    # A sync that takes longer makes new ACK_FLUSH requests fail with 101; past the second the broker resigns (F20).
    slow_sync_ms: int = 2000
    sync_limit_ms: int = 30_000
    # While nobody waits for a sync, neither a producer nor a consumer, there is none sooner than this after the last.
    lazy_sync_ms: int = 20
    drain_timeout_ms: int = 10_000
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    retention_every_ms: int = 60_000
    # Messages that failed and wait, and dead letters, of all apps; see `limits` for what happens when there are more.
    retries_max: int = 100_000
    dead_letters_max: int = 100_000
    delays: DelayLimits = field(default_factory=DelayLimits)
    transactions: TransactionLimits = field(default_factory=TransactionLimits)
    # How many sent ids are remembered, and for how long, to store a repeated send once.
    uniq_ids_max: int = 50_000
    uniq_ids_ms: int = 3_600_000
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    # What the data are called if they have no name yet: random, made by whoever starts the broker. Empty: none.
    cluster_id: str = ""
    limits: BrokerLimits = field(default_factory=BrokerLimits)

"""What the operators' HTTP interface takes and gives, as types: they check requests and make /openapi.json.

Loads pydantic, so only `admin_app.py` imports it. Names and numbers are checked again, and finally, by the broker.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=127)]
PerSecond = Annotated[int, Field(ge=0, description="0: as much as it likes")]


class Taken(BaseModel):
    """Of what is sent to us: nothing unknown, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def given(self, *left_out: str) -> dict[str, Any]:
        """What was set, as arguments."""
        return self.model_dump(exclude_unset=True, exclude_none=True, exclude=set(left_out))


# --- taken ---------------------------------------------------------------------------------------------------------


class TopicChange(Taken):
    partitions: Annotated[int, Field(ge=1, le=32766)] | None = None
    is_writable: bool | None = None
    is_readable: bool | None = None
    is_archived: bool | None = None


class TopicSettings(TopicChange):
    write_partitions: Annotated[int, Field(ge=0, le=32766)] | None = Field(
        None, description="how many take messages, from the first; 0: all"
    )
    read_partitions: Annotated[int, Field(ge=0, le=32766)] | None = Field(
        None, description="how many hand out messages, from the first; 0: all. Fewer only once the others are consumed"
    )


class NewTopic(TopicChange):
    name: Name
    type: Literal["normal", "broadcast", "ordered"] = "normal"


class NewApp(Taken):
    name: Name


class AppLimits(Taken):
    produce_per_second: PerSecond | None = None
    produce_bytes_per_second: PerSecond | None = None
    fetch_per_second: PerSecond | None = None
    fetch_bytes_per_second: PerSecond | None = None


class NewToken(Taken):
    id: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")] | None = Field(None, description="made up if left out")
    token: Annotated[str, Field(min_length=8, max_length=512)] | None = Field(None, description="made up if left out")
    expires_ms: Annotated[int, Field(ge=0, le=1 << 53)] = Field(0, description="since 1970; 0: never")


class ProducerSettings(Taken):
    is_nearby: bool | None = None
    is_single: bool | None = None
    is_archive: bool | None = None
    weights: dict[str, int] | None = None
    black_list: list[str] | None = None
    timeout_ms: int | None = None
    is_forbidden: bool | None = Field(None, description="the app may send nothing there")
    parks_over_rate: bool | None = Field(None, description="what is over the app's rate becomes a dead letter")


class ConsumerSettings(Taken):
    is_nearby: bool | None = None
    is_paused: bool | None = None
    is_archive: bool | None = None
    is_retry: bool | None = None
    is_sequential: bool | None = None
    ack_timeout_ms: int | None = None
    batch_size: int | None = None
    is_concurrent: bool | None = None
    concurrent_prefetch_size: int | None = None
    delay_ms: int | None = None
    black_list: list[str] | None = None
    error_times: int | None = None
    partitions_max: int | None = None
    retry_read_probability: int | None = None
    retry_times: int | None = Field(None, description="after the first delivery; then it is a dead letter")
    retry_schedule: str | None = None
    retry_first_ms: int | None = None
    retry_factor: int | None = None
    retry_delay_max_ms: int | None = None
    is_forbidden: bool | None = Field(None, description="the app may receive nothing from there")
    only_region: str | None = Field(None, description="consumers of this region receive, no others; empty: all")
    filter: str | None = Field(None, description="which messages it wants; empty: all")


class SubscriptionChange(Taken):
    topic: Name
    app: Name
    producer: ProducerSettings | None = Field(None, description="left out: stays as it is")
    consumer: ConsumerSettings | None = Field(None, description="left out: stays as it is")
    start: Literal["earliest", "latest"] = Field("latest", description="where a new consumer begins")


class Seek(Taken):
    topic: Name
    app: Name
    to: Literal["earliest", "latest", "time"] | Annotated[int, Field(ge=0)]
    partition: Annotated[int, Field(ge=0)] | None = Field(None, description="left out: all of them")
    time_ms: Annotated[int, Field(ge=0, le=1 << 53)] | None = Field(None, description="for `time`: since 1970")
    execute: bool = Field(False, description="false: only say what would be done")


class BrokerChange(Taken):
    readable: bool | None = None
    writable: bool | None = None


# --- given ---------------------------------------------------------------------------------------------------------


class Topic(BaseModel):
    name: str
    type: str
    partitions: int
    write_partitions: int = Field(description="how many of them take messages, from the first")
    read_partitions: int = Field(description="how many of them hand out messages, from the first")
    is_writable: bool
    is_readable: bool
    is_archived: bool


class Token(BaseModel):
    id: str
    expires_ms: int


class MadeToken(Token):
    app: str
    token: str = Field(description="told this once: only a digest is kept")


class Limits(BaseModel):
    produce_per_second: int
    produce_bytes_per_second: int
    fetch_per_second: int
    fetch_bytes_per_second: int


class App(BaseModel):
    name: str
    is_open: bool = Field(description="any token will do: it was made on first use")
    tokens: list[Token]
    limits: Limits


class ProducerPolicy(BaseModel):
    is_nearby: bool
    is_single: bool
    is_archive: bool
    weights: dict[str, int]
    black_list: list[str]
    timeout_ms: int
    is_forbidden: bool
    parks_over_rate: bool


class ConsumerPolicy(BaseModel):
    is_nearby: bool
    is_paused: bool
    is_archive: bool
    is_retry: bool
    is_sequential: bool
    ack_timeout_ms: int
    batch_size: int
    is_concurrent: bool
    concurrent_prefetch_size: int
    delay_ms: int
    black_list: list[str]
    error_times: int
    partitions_max: int
    retry_read_probability: int
    retry_times: int
    retry_schedule: str
    retry_first_ms: int
    retry_factor: int
    retry_delay_max_ms: int
    is_forbidden: bool
    only_region: str
    filter: str


class Subscription(BaseModel):
    topic: str
    app: str
    producer: ProducerPolicy | None
    consumer: ConsumerPolicy | None


class PartitionOffsets(BaseModel):
    partition: int
    group: int
    first_offset: int
    end_offset: int


class TopicDetails(Topic):
    partition_offsets: list[PartitionOffsets]
    subscriptions: list[Subscription]


class AppDetails(App):
    subscriptions: list[Subscription]


class Place(BaseModel):
    partition: int
    offset: int
    first_offset: int
    end_offset: int
    lag: int


class Move(Place):
    target: int
    change: int


class Broker(BaseModel):
    broker: int
    mode: Literal["dev", "strict"]
    readable: bool
    writable: bool
    draining: bool
    connections: int
    topics: int
    journal_bytes: int
    unsynced_bytes: int
    journal_failure: str | None
    disk_full: str | None
    notes: list[str]


class Connection(BaseModel):
    id: str
    host: str
    app: str
    dialect: str | None
    version: str
    producers: list[str]
    consumers: list[str]
    in_flight_bytes: int
    parked_polls: int


class Dropped(BaseModel):
    dropped: str | list[str]


class Check(BaseModel):
    is_ok: bool
    detail: str


class Health(BaseModel):
    status: Literal["ok", "failing"]
    checks: dict[str, Check]


class Failure(BaseModel):
    code: int | None = Field(description="the code on the wire; `lakemq errors` explains it")
    name: str
    detail: str
    fix: str


class FailureAnswer(BaseModel):
    error: Failure

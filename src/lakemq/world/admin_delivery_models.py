"""What the operators' HTTP interface takes and gives for messages that failed, wait, or are sent again, as types."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from lakemq.world.admin_models import Name, Taken

Cause = Literal["exhausted", "expired", "rate", "filter", "asked", "store"]
Number = Annotated[int, Field(ge=0, le=1 << 62)]
By = Annotated[str, Field(min_length=1, max_length=100, description="who does it, for the audit and the log")]
PerSecond = Annotated[int, Field(ge=0, le=1_000_000, description="0: as fast as it goes")]
Execute = Annotated[bool, Field(description="false: only say what would be done")]


# --- taken ---------------------------------------------------------------------------------------------------------


class DeadLetterQuery(BaseModel):
    """Which dead letters; what is left out matches all."""

    model_config = ConfigDict(extra="forbid")

    topic: Name | None = None
    app: Name | None = None
    cause: Cause | None = None
    text: Annotated[str, Field(min_length=1, max_length=200, description="in the reason or the key")] | None = None
    from_ms: Annotated[int, Field(description="died then or later")] | None = None
    until_ms: Annotated[int, Field(description="died then or before")] | None = None
    first_id: Number | None = None
    last_id: Number | None = None


class DeadLetterListing(DeadLetterQuery):
    after: Annotated[Number | None, Field(description="`next` of the page before")] = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    order: Literal["newest", "oldest"] = "newest"
    with_bodies: bool = False


class DeadLetterChange(Taken):
    body: Annotated[str, Field(description="base64; or else `text`")] | None = None
    text: str | None = None
    key: str | None = None
    attributes: dict[str, str | None] | None = Field(None, description="those to set; null takes one away")
    by: By = "http"


class Resend(Taken):
    to: Literal["app", "topic"] = Field("app", description="the app that failed, or all who receive the topic")
    by: By = "http"


class DeleteMany(DeadLetterQuery, Taken):
    model_config = ConfigDict(extra="forbid", strict=True)

    per_second: PerSecond = 0
    execute: Execute = False
    by: By = "http"


class ResendMany(DeleteMany):
    to: Literal["app", "topic"] = "app"


class RetryWish(Taken):
    topic: Name
    app: Name
    ids: Annotated[list[int], Field(min_length=1, max_length=100)] | None = Field(None, description="left out: all")
    execute: Execute = False
    by: By = "http"


class RangeWish(Taken):
    partition: Annotated[int, Field(ge=0)] | None = Field(None, description="left out: all, by time")
    first: Number | None = Field(None, description="offset; needs `partition`")
    last: Number | None = Field(None, description="offset, included")
    from_ms: Number | None = Field(None, description="stored then or later")
    until_ms: Number | None = Field(None, description="stored then or before")
    to_topic: Name | None = Field(None, description="left out: the same")
    per_second: PerSecond = 0
    execute: Execute = False
    by: By = "http"


# --- given ---------------------------------------------------------------------------------------------------------


class DeadLetter(BaseModel):
    id: int
    cause: Cause
    reason: str
    topic: str
    app: str = Field(description="who could not handle it; with cause `rate`, who sent it")
    partition: int
    offset: int | None = Field(description="null if it never got one")
    attempts: int
    first_ms: int = Field(description="when it failed for the first time")
    died_ms: int
    key: str | None = Field(description="null if the message cannot be read")
    tags: str | None
    size: int | None = Field(description="bytes of the body")


class DeadLetterDetails(DeadLetter):
    trouble: str = Field(description="why the message cannot be read, if so")
    attributes: dict[str, str] | None
    sender: str | None
    priority: int | None
    sent_ms: int | None
    stored_ms: int | None
    body: str | None = Field(description="base64")
    text: str | None = Field(description="the body, if it is UTF-8")


class DeadLetterRow(DeadLetter):
    """With `with_bodies`, all of it."""

    trouble: str = ""
    attributes: dict[str, str] | None = None
    sender: str | None = None
    priority: int | None = None
    sent_ms: int | None = None
    stored_ms: int | None = None
    body: str | None = None
    text: str | None = None


class DeadLetterPage(BaseModel):
    rows: list[DeadLetterRow] = Field(description="a page may be short and not be the last")
    next: int | None = Field(description="give it as `after` to go on; null at the end")
    count: int = Field(description="all dead letters there are")


class Done(BaseModel):
    id: int
    outcome: str


class AuditRow(BaseModel):
    id: int
    action: str
    by: str
    time_ms: int


class Failed(BaseModel):
    what: str
    why: str


class Job(BaseModel):
    """Long work. It is in memory: a restart of the broker ends it, and what is done stays done."""

    id: int
    kind: str
    about: str
    by: str
    state: Literal["running", "done", "cancelled", "failed"]
    total: int
    done: int
    skipped: int = Field(description="gone meanwhile, or not what was meant")
    failed: int
    bytes: int
    failures: list[Failed] = Field(description="the first of them")
    per_second: int
    trouble: str = Field(description="what it waits for, or why it failed")
    began_ms: int
    ended_ms: int | None


class DeadLetterGroup(BaseModel):
    topic: str
    app: str
    cause: Cause
    count: int


class ManyDone(BaseModel):
    count: int
    is_complete: bool = Field(description="false: there are too many to look for the text in all of them")
    groups: list[DeadLetterGroup]
    job: Job | None = Field(description="null: nothing is being done")


class Retry(BaseModel):
    id: int
    topic: str
    app: str
    partition: int
    offset: int
    attempts: int
    due_ms: int
    first_ms: int
    reason: str
    is_lent: bool = Field(description="a consumer has it in hand: it is left alone")


class RetryPage(BaseModel):
    rows: list[Retry]
    next: int | None
    count: int


class RetriesDone(BaseModel):
    count: int = Field(description="those that it concerns")
    lent: int = Field(description="those that a consumer has in hand, which are left alone")
    done: int
    job: Job | None


class Delay(BaseModel):
    id: int
    topic: str
    partition: int
    due_ms: int
    key: str
    tags: str
    size: int


class DelayPage(BaseModel):
    rows: list[Delay] = Field(description="a page may be short and not be the last")
    next: int | None


class CopiedPartition(BaseModel):
    partition: int
    first: int
    last: int
    count: int


class RangeDone(BaseModel):
    topic: str
    to_topic: str
    partitions: list[CopiedPartition]
    count: int
    bytes: int
    is_estimate: bool = Field(description="the bytes are worked out from the first messages")
    job: Job | None

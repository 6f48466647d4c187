"""The words of a history: what was sent, handed out and said; and the error that says which promise is broken."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lakemq.errors import from_status
from lakemq.message import Qos
from lakemq.testing.rules import NEVER_MS

PartitionKey = tuple[str, int]  # topic, partition
AppKey = tuple[str, str, int]  # topic, app, partition


class ViolationError(AssertionError):
    """The broker broke a promise."""


def violate(invariant: str, text: str) -> None:
    """Say which promise is broken."""
    raise ViolationError(f"{invariant}: {text}")


class Payload(NamedTuple):
    """One message's content, made once, sent once or more."""

    id: int
    producer: str
    topic: str
    crc: int
    key: str  # the businessId
    attributes: Mapping[str, str] = {}  # those of its carrier
    expires_ms: int = NEVER_MS  # wall time


class CarrierOf(NamedTuple):
    """One message or batch of a request."""

    ids: tuple[int, ...]
    uniq_id: str = ""


@dataclass(slots=True)
class Send:
    """One attempt to store the messages of one topic."""

    number: int
    producer: str
    connection: int
    topic: str
    qos: Qos
    carriers: tuple[CarrierOf, ...]
    partition: int  # as asked for
    invoked_ms: int
    completed_ms: int = -1
    outcome: str = "unknown"  # until told otherwise: ok, failed, unknown
    code: int = -1
    places: tuple[tuple[int, int], ...] = ()  # partition and index of each carrier
    due_ms: int = 0  # not to be delivered before that guarded time; 0 at once
    due_latest_ms: int = 0  # and at that it is, if the broker works
    transaction: int = -1  # the number of the one it is part of


class Origin(NamedTuple):
    """Of which dead letter a message is a copy, by what the copy says."""

    place: str  # topic/partition/index of the original
    uniq_id: str  # made of the dead letter's id


@dataclass(slots=True)
class Resend:
    """An operator's wish to have a dead letter tried once more."""

    key: PartitionKey
    index: int
    origin: Origin  # what a copy will say, if one goes to the topic
    outcome: str = "unknown"  # until told otherwise: app, topic, failed, unknown


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message as it was handed out, of a batch one of its members; a retry as the message that it is."""

    index: int  # of a retry its id
    payload: int
    partition: int = 0  # where the message is stored
    home_index: int = -1
    carrier: int = -1  # the first index of what it came in; of a retry the index of the attempt
    attempt: int = 1


class Said(NamedTuple):
    """What a consumer says of one message."""

    one: Delivered
    outcome: int = 0  # 0 done, 1 failed, 2 a dead letter
    after_ms: int = -1  # to be tried again after so long; -1 as the policy says


class Asked(NamedTuple):
    """What was known when a question was asked; goes with its answer."""

    epoch: int
    floor: int
    seeks_open: int


def outcome_of(code: int) -> str:
    """How a code has to be taken: ok, unknown or failed."""
    if code == 0:
        return "ok"
    return "unknown" if from_status(code).maybe_written else "failed"


def lateness(late_ms: int) -> str:
    """As a histogram has it."""
    return next((f"<= {limit} ms" for limit in (0, 20, 50, 100, 500, 1000) if late_ms <= limit), "> 1000 ms")

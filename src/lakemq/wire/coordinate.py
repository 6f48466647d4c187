"""FIND_COORDINATOR and FETCH_ASSIGNED_PARTITION: who coordinates an app, and which partitions it gives to whom."""

from dataclasses import dataclass

from lakemq.wire.buffer import Reader, Writer
from lakemq.wire.fields import BOOLEAN, INT, SHORT, STRING, Array, Struct

NO_COORDINATOR = -1


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Which broker coordinates the app on these topics?"""

    topics: tuple[str, ...] = ()
    app: str = ""


@dataclass(frozen=True, slots=True)
class TopicCoordinator:
    """The coordinator for one topic; with the id NO_COORDINATOR the broker's fields are not sent."""

    topic: str = ""
    id: int = NO_COORDINATOR
    host: str = ""
    port: int = 0
    data_center: str = ""
    is_nearby: bool = False
    weight: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class FindCoordinatorAck:
    """One entry per topic asked for."""

    coordinators: tuple[TopicCoordinator, ...] = ()


@dataclass(frozen=True, slots=True)
class AssignmentWish:
    """One topic to be assigned; the assignment is released `session_timeout_ms` after the last such request."""

    topic: str = ""
    session_timeout_ms: int = 0
    is_nearby: bool = False


@dataclass(frozen=True, slots=True)
class FetchAssignedPartition:
    """Which partitions are mine?"""

    topics: tuple[AssignmentWish, ...] = ()
    app: str = ""


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """The partitions of one topic."""

    topic: str = ""
    partitions: tuple[int, ...] = ()
    code: int = 0


@dataclass(frozen=True, slots=True)
class FetchAssignedPartitionAck:
    """One entry per topic asked for."""

    topics: tuple[TopicAssignment, ...] = ()


class _TopicCoordinatorField(Struct[TopicCoordinator]):
    """The broker's fields are there only if there is a coordinator."""

    def read(self, reader: Reader) -> TopicCoordinator:
        start = reader.position
        topic, broker_id = reader.string(2), reader.integer()
        if broker_id == NO_COORDINATOR:
            return TopicCoordinator(topic, code=reader.integer())
        reader.position = start
        return super().read(reader)

    def write(self, writer: Writer, value: TopicCoordinator) -> None:
        if value.id != NO_COORDINATOR:
            super().write(writer, value)
            return
        writer.string(value.topic, 2)
        writer.integer(value.id)
        writer.integer(value.code)


_TOPIC_COORDINATOR = _TopicCoordinatorField(
    TopicCoordinator,
    topic=STRING,
    id=INT,
    host=STRING,
    port=INT,
    data_center=STRING,
    is_nearby=BOOLEAN,
    weight=INT,
    code=INT,
)
_TOPIC_COORDINATOR.bytes_min = 2 + 4 + 4  # without a coordinator
FIND_COORDINATOR = Struct(FindCoordinator, topics=Array(STRING), app=STRING)
FIND_COORDINATOR_ACK = Struct(FindCoordinatorAck, coordinators=Array(_TOPIC_COORDINATOR))
FETCH_ASSIGNED_PARTITION = Struct(
    FetchAssignedPartition,
    topics=Array(Struct(AssignmentWish, topic=STRING, session_timeout_ms=INT, is_nearby=BOOLEAN)),
    app=STRING,
)
FETCH_ASSIGNED_PARTITION_ACK = Struct(
    FetchAssignedPartitionAck,
    topics=Array(Struct(TopicAssignment, topic=STRING, partitions=Array(SHORT), code=INT)),
)

"""Which dialect of jmq4 a connection speaks, in which header version, and the numbers that depend on it.

DOCUMENTED is the protocol as its description has it, and what is stored. JOYQUEUE is what JoyQueue's own clients put on
the wire. The dialect is told at the first frame (`session.recognise`) and kept for the connection's life.
"""

from dataclasses import dataclass, field
from enum import Enum

from lakemq.errors import BadParameterError, DecodeError, LakeMQError, SerializationError, UnsupportedCommandError
from lakemq.message import Qos

VERSION_OURS = 2
_VERSION_NEWEST = 4


class Dialect(Enum):
    """One of the two ways to lay out the same commands."""

    DOCUMENTED = "documented"
    JOYQUEUE = "joyqueue"


@dataclass(frozen=True, slots=True)
class Form:
    """All that decides how a payload is laid out."""

    dialect: Dialect = Dialect.DOCUMENTED
    version: int = VERSION_OURS  # as it stands in the header, echoed in answers
    # What an empty string, array of bytes or text is given as length: 0, or -1 as joyqueue-python does. Read alike.
    null_length: int = 0
    # Derived: asked for at every field.
    is_joyqueue: bool = field(init=False, repr=False, compare=False)
    # The version whose layout is used: 0 counts as 1, and what is newer than we know as the newest we know.
    layout_version: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_joyqueue", self.dialect is Dialect.JOYQUEUE)
        object.__setattr__(self, "layout_version", min(max(self.version, 1), _VERSION_NEWEST))


_VERSIONS = range(256)
_DOCUMENTED_FORMS = tuple(Form(Dialect.DOCUMENTED, version) for version in _VERSIONS)
_JOYQUEUE_FORMS = tuple(Form(Dialect.JOYQUEUE, version) for version in _VERSIONS)


def form_of(dialect: Dialect, version: int) -> Form:
    """The form of a header's version byte; made once, because every frame asks for it."""
    return (_JOYQUEUE_FORMS if dialect is Dialect.JOYQUEUE else _DOCUMENTED_FORMS)[version]


_QOS_DOCUMENTED = (Qos.FLUSH, Qos.RECEIVE, Qos.NO, Qos.WRITE)
# One-way, receive, persistence, replication, all.
_QOS_JOYQUEUE = (Qos.NO, Qos.RECEIVE, Qos.FLUSH, Qos.WRITE, Qos.FLUSH)
_QOS_JOYQUEUE_DEFAULT = 3
_JOYQUEUE_LEVELS = {Qos.NO: 0, Qos.RECEIVE: 1, Qos.WRITE: 3, Qos.FLUSH: 4}
_HEADER_QOS_ONE_WAY = 0  # in JoyQueue's header bits; every other value asks for a reply


def qos_of_level(level: int, dialect: Dialect) -> Qos:
    """What a produce request's qosLevel asks for."""
    if dialect is Dialect.JOYQUEUE:
        return _QOS_JOYQUEUE[level if 0 <= level < len(_QOS_JOYQUEUE) else _QOS_JOYQUEUE_DEFAULT]
    if not 0 <= level < len(_QOS_DOCUMENTED):
        raise BadParameterError(f"qosLevel {level} is not one of 0 flush, 1 receive, 2 no, 3 write")
    return _QOS_DOCUMENTED[level]


def level_of_qos(qos: Qos, dialect: Dialect) -> int:
    """The qosLevel that asks for `qos`."""
    return _JOYQUEUE_LEVELS[qos] if dialect is Dialect.JOYQUEUE else _QOS_DOCUMENTED.index(qos)


def header_qos(bits: int, dialect: Dialect) -> Qos:
    """What the header's two QoS bits say; JoyQueue's only tell whether a reply is wanted."""
    if dialect is Dialect.JOYQUEUE:
        return Qos.NO if bits == _HEADER_QOS_ONE_WAY else Qos.RECEIVE
    return _QOS_DOCUMENTED[bits & 3]


def status_of(error: LakeMQError, dialect: Dialect) -> int:
    """The status byte an error travels as: each dialect has a number of its own for what it cannot read."""
    if isinstance(error, UnsupportedCommandError):
        status: int | None = BadParameterError.status if dialect is Dialect.DOCUMENTED else error.status
    elif isinstance(error, SerializationError) and dialect is Dialect.JOYQUEUE:
        status = DecodeError.status
    else:
        status = error.status
    return status if status is not None and status <= 255 else 4

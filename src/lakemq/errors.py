"""The error tree: what went wrong, what to do next, and whether the message may be stored all the same.

A class with a status travels: the broker sends the number, `from_status` gives the class back in the client.
A class without one is a family to catch by, or stays on its side of the wire. Each number has one class, for ever.

`retriable`: the same request may succeed later, or at another broker after a metadata refresh, with nobody
changing it or a setting. Damage (a bad checksum, an unreadable record) is not: it must not be retried in silence.
`maybe_written`: the outcome is "unknown", the message may or may not appear. Without it the outcome is "failed":
the message never appears, and a handler that raises such an error has written nothing.
"""

from typing import ClassVar

_by_status: "dict[int, type[LakeMQError]]" = {}


class LakeMQError(Exception):
    """Base of all errors that LakeMQ raises on purpose."""

    status: ClassVar[int | None] = None  # one byte on the wire; None: never travels
    retriable: ClassVar[bool] = False
    maybe_written: bool = False  # of a class; an error may know better, if an earlier try had no answer
    in_seed: ClassVar[bool] = True  # False: not in the jmq4 table, but known to JoyQueue clients, or local
    cause: ClassVar[str] = "LakeMQ could not do what was asked."
    fix: ClassVar[str] = "Read the detail; `lakemq errors` lists all errors with their causes."

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.cause)
        self.detail = detail

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__doc__ is None:
            cls.__doc__ = f"{cls.cause} {cls.fix}"
        if cls.status is None:
            return
        assert 1 <= cls.status <= 255, f"{cls.__name__}: status {cls.status} does not fit the header's byte"
        taken = _by_status.get(cls.status)
        assert taken is None, f"{cls.__name__}: status {cls.status} already belongs to {taken and taken.__name__}"
        _by_status[cls.status] = cls


def from_status(status: int, detail: str = "") -> LakeMQError:
    """The error a peer sent. A status nobody filed, 0 among them, becomes an UnknownError that names it."""
    found = _by_status.get(status)
    if found is None:
        return UnknownError(f"status {status} is not known here" + (f": {detail}" if detail else ""))
    return found(detail)


def all_errors() -> list[type[LakeMQError]]:
    """Every class that travels, by status."""
    return [_by_status[status] for status in sorted(_by_status)]


# The families, to catch by.


class RequestError(LakeMQError):
    """The request itself is wrong; sent again as it is, it fails again."""


class SessionError(LakeMQError):
    """Who is asking: not known, not proven, or not allowed."""


class BrokerError(LakeMQError):
    """The broker cannot serve anything like this at the moment."""


class RoutingError(LakeMQError):
    """The wrong place was asked, or there is no right one."""


class ProduceError(LakeMQError):
    """The message is not taken."""


class ConsumeError(LakeMQError):
    """Messages are not handed out, or an ack is not taken."""


class TransactionError(LakeMQError):
    """The transaction cannot be begun, filled or finished."""


class CoordinatorError(LakeMQError):
    """Partitions cannot be shared out among an app's consumers."""


class ReplicationError(LakeMQError):
    """The replicas of a partition group do not agree, or not in time."""


class StorageError(LakeMQError):
    """The store cannot be read or written as asked."""


# Local: never on the wire.


class BadFrameError(LakeMQError):
    """The byte stream cannot be trusted any more. What was in flight on that connection has outcome "unknown"."""

    in_seed = False
    cause = "The byte stream cannot be trusted any more; the connection is closed."
    fix = "Connect again; if it comes back, check that both sides speak jmq4 on this port."


class HttpSpokenError(BadFrameError):
    """A web browser, a health check or the operators' command line has the two ports mixed up."""

    cause = "What came is HTTP, and this is the port for clients, which speaks jmq4."
    fix = "Use the port for operators, 50090 unless it was set otherwise; the broker's banner has it."


# The request.


class BadParameterError(RequestError):
    status: ClassVar[int | None] = 6
    cause = "A field of the request has a value that is not allowed."
    fix = "Correct the field that the detail names, then send again."


class UnknownNameError(BadParameterError):
    status = None  # told to operators only; a wire that must carry it would say 6
    in_seed = False
    cause = "There is nothing of this name."
    fix = "Check the name for slips; list what there is, or create it first."


class NameTakenError(BadParameterError):
    status = None
    in_seed = False
    cause = "There is something of this name already."
    fix = "Choose another name, or change what is there."


class ChecksumError(RequestError):
    status = 8
    cause = "A message does not match its checksum: it was damaged, or the sum was computed wrongly."
    fix = "Send it once more; if that fails too, check the client's CRC code and the machine's memory."


class UnsupportedCommandError(RequestError):
    status = 27
    in_seed = False
    cause = "The broker does not know this command."
    fix = "Compare the versions of client and broker, and upgrade the older one."


class DecodeError(RequestError):
    status = 28
    in_seed = False
    cause = "The frame arrived whole, but its payload does not follow the command's layout."
    fix = "Check the client's version and which dialect of jmq4 it speaks."


class SerializationError(RequestError):
    status = 107
    cause = "A message or its body could not be turned into bytes, or back from them."
    fix = "Check the message's compression type, batch and attributes against the library that wrote it."


# The session.


class NoPermissionError(SessionError):
    status = 1
    cause = "The app has no subscription that allows this on the topic."
    fix = "Subscribe the app to the topic, as producer or as consumer, then try again."


class AuthenticationError(SessionError):
    status = 2
    cause = "App name and token do not belong together, or the token has expired."
    fix = "Check the app name and token that the client is given; if the token has expired, issue a new one."


class ConnectionExistsError(SessionError):
    status = 131
    cause = "This connection has introduced itself before."
    fix = "Send ADD_CONNECTION once per connection; this one can be used as it is."


class ConnectionNotFoundError(SessionError):
    status = 132
    cause = "The connection has not introduced itself, or the request names another app than it did."
    fix = "Send ADD_CONNECTION first on every new connection, and keep to that app."


class ProducerNotFoundError(SessionError):
    status = 134
    cause = "The app is not a producer of this topic on this connection."
    fix = "Send ADD_PRODUCER for the topic; if that is refused, subscribe the app as a producer."


class ConsumerNotFoundError(SessionError):
    status = 136
    cause = "The app is not a consumer of this topic on this connection."
    fix = "Send ADD_CONSUMER for the topic; if that is refused, subscribe the app as a consumer."


# The broker.


class ServiceUnavailableError(BrokerError):
    status = 3
    retriable = True
    maybe_written = True
    cause = "The broker is starting, stopping, or cut off from the cluster's metadata."
    fix = "Try again shortly; if it lasts, check the broker process and its link to ZooKeeper."


class UnknownError(BrokerError):
    status = 4
    maybe_written = True
    cause = "Something happened that nobody foresaw, most likely a bug."
    fix = "Find the traceback of that moment in the broker's log, and report it with the request."


class InitializationError(BrokerError):
    status = 9
    retriable = True
    cause = "A part of the broker has not started yet, or failed to."
    fix = "Try again shortly; if it lasts, read the first error in the broker's log since its start."


class BrokerBusyError(BrokerError):
    status = 26
    retriable = True
    in_seed = False
    cause = "The broker's request queue is full; this request was dropped unread."
    fix = "Slow down and try again; if it lasts, spread the load over more brokers."


class RateLimitedError(BrokerError):
    status = 74
    retriable = True
    in_seed = False
    cause = "The app has used up its rate for now."
    fix = "Wait a second and try again; if so much traffic is meant, raise the app's limit."


# The route.


class NotLeaderForFetchError(RoutingError):
    status = 187
    retriable = True
    cause = "Another broker leads this partition group, so there is nothing to fetch or ack here."
    fix = "Refresh the metadata and ask the leader; if no leader is named, check the group's brokers."


class NotLeaderError(RoutingError):
    status = 188
    retriable = True
    cause = "Another broker leads this partition group, so it cannot be written here."
    fix = "Refresh the metadata and send to the leader; if no leader is named, check the group's brokers."


class TopicNotFoundError(RoutingError):
    status = 189
    cause = "There is no topic of this name."
    fix = "Check the name for slips and the namespace it is in, or create the topic first."


class NoPartitionGroupError(RoutingError):
    status = 190
    retriable = True
    cause = "The topic has no partition group that can serve: none was made, or none has a leader."
    fix = "Look up which brokers hold the topic's partition groups, and start those that are down."


class NotPartitionLeaderError(RoutingError):
    status = 191
    retriable = True
    in_seed = False
    cause = "Another broker leads the partition that the request names."
    fix = "Refresh the metadata and ask that partition's leader."


# Producing.


class AppendError(ProduceError):
    status = 141
    retriable = True
    maybe_written = True
    cause = "Adding the message to its topic went wrong half-way."
    fix = "Read the detail and the broker's log; a second send may make a second copy."


class TopicNotWritableError(ProduceError):
    status = 144
    cause = "The topic takes nothing from this app or address: it is read-only, or the sender is blacklisted."
    fix = "Make the topic writable for the app, or take the address off the producer policy's blacklist."


class SendForbiddenError(ProduceError):
    status = 146
    cause = "The app's owner has forbidden this connection to send."
    fix = "Lift the ban in the app's producer policy, or send from a machine that is allowed to."


class BrokerNotWritableError(ProduceError):
    status = 193
    retriable = True
    in_seed = False
    cause = "This broker has been set to take no messages."
    fix = "Send to another broker, or make this one writable again."


# Consuming.


class IndexAboveRangeError(ConsumeError):
    status = 92
    cause = "The index lies beyond the end of the partition."
    fix = "Start at the partition's end or before; an index from another cluster does not fit here."


class IndexBelowRangeError(ConsumeError):
    status = 93
    cause = "The index lies before the oldest message that is still kept."
    fix = "Start at the oldest kept message; what retention removed may still be in the lake."


class AckError(ConsumeError):
    status = 140
    cause = "The ack was not taken: its indexes leave gaps, repeat, or were never lent to this consumer."
    fix = "Ack each partition's messages as they were fetched; what is not acked will be delivered again."


class FetchError(ConsumeError):
    status = 142
    retriable = True
    cause = "Fetching messages went wrong; none were handed out."
    fix = "Fetch again; if it lasts, look for this topic and partition in the broker's log."


class OrderedStateError(ConsumeError):
    status = 143
    retriable = True
    cause = "The broker could not bring its state of an ordered topic up to date."
    fix = "Fetch again; if it lasts, look for this topic in the log of its partition's leader."


class TopicNotReadableError(ConsumeError):
    status = 145
    cause = "The topic hands out nothing to this app or address: it is write-only, or the reader is blacklisted."
    fix = "Make the topic readable for the app, or take the address off the consumer policy's blacklist."


class ConsumeForbiddenError(ConsumeError):
    status = 147
    cause = "The app's owner has forbidden this connection to consume."
    fix = "Lift the ban in the app's consumer policy, or consume from a machine that is allowed to."


class ConsumedElsewhereError(ConsumeError):
    status = 149
    cause = "Consumption across data centres is on, so this data centre may not consume."
    fix = "Run the consumers in the data centre that was chosen, or turn that mode off."


class IndexOutOfRangeError(ConsumeError):
    status = 184
    cause = "The index to fetch from lies outside what the partition holds."
    fix = "Ask for the app's index (FETCH_INDEX) and go on from there, or reset it."


class ConsumePausedError(ConsumeError):
    status = 186
    retriable = True
    cause = "Consumption of this topic is paused for the app."
    fix = "Resume it in the consumer policy; consumers may keep asking until then."


class BrokerNotReadableError(ConsumeError):
    status = 192
    retriable = True
    in_seed = False
    cause = "This broker has been set to hand out no messages."
    fix = "Make the broker readable again, or move its partition groups to another."


# Transactions.


class UnknownTransactionError(TransactionError):
    status = 34
    in_seed = False
    cause = "The transaction id means nothing to this broker (JoyQueue's number for 138)."
    fix = "Send to the broker where it was begun; if it has ended, begin a new one."


class TransactionExistsError(TransactionError):
    status = 137
    cause = "A transaction with this id is already open."
    fix = "Finish that one first, or begin this one under another id."


class TransactionNotFoundError(TransactionError):
    status = 138
    cause = "No open transaction has this id: it has ended, has expired, or lives on another broker."
    fix = "Find out how it ended; if it was not committed, begin a new one and send its messages again."


class TransactionCommitError(TransactionError):
    status = 139
    cause = "The transaction cannot end this way; it may have been decided the other way before."
    fix = "Look up how it was decided; what is still undecided is listed by FETCH_PRODUCE_FEEDBACK."


class TooManyTransactionsError(TransactionError):
    status = 148
    retriable = True
    cause = "The app has as many open transactions on this topic as it may have."
    fix = "Commit or roll back some, then try again; look for code that begins them and never ends them."


# The coordinator.


class CoordinatorUnavailableError(CoordinatorError):
    status = 181
    retriable = True
    cause = "This broker does not coordinate the app, or no broker does at the moment."
    fix = "Send FIND_COORDINATOR and ask the broker it names; if it names none, check that brokers are up."


class AssignorNotFoundError(CoordinatorError):
    status = 182
    cause = "The configured way of assigning partitions does not exist."
    fix = "Correct the assignment type in the broker's settings."


class AssignmentError(CoordinatorError):
    status = 183
    retriable = True
    cause = "The coordinator could not share out the partitions."
    fix = "Ask again; if it lasts, check that the topic exists, then the coordinator's log."


class NoAssignablePartitionError(CoordinatorError):
    status = 185
    retriable = True
    cause = "There is no partition to assign: none has a leader, or none is in the consumer's region."
    fix = "Start the brokers that hold the topic, or turn nearby consumption off."


# Replication and elections.


class NegativeVoteError(ReplicationError):
    status = 7
    cause = "A broker refused its vote: it knows a later term, or has more of the journal than the candidate."
    fix = "Do nothing if a leader follows; if none does, check that the in-sync brokers are up."


class ReplicaQueueTimeoutError(ReplicationError):
    status = 111
    retriable = True
    maybe_written = True
    cause = "The message waited too long for its turn to be sent to the followers."
    fix = "Check the leader's load and the followers' lag; a second send may make a second copy."


class ReplicaTimeoutError(ReplicationError):
    status = 112
    retriable = True
    maybe_written = True
    cause = "The followers did not confirm the message in time."
    fix = "Check the followers' lag, disks and network; a second send may make a second copy."


class ReplicaFailureError(ReplicationError):
    status = 113
    retriable = True
    maybe_written = True
    cause = "Copying the message to the followers failed."
    fix = "Look for the failed follower in the leader's log; a second send may make a second copy."


class ReplicaPositionError(ReplicationError):
    status = 114
    cause = "The follower's journal does not continue where the leader's records begin."
    fix = "Let the follower cut its journal and catch up; if its lag does not shrink, restart it."


class OffsetSyncError(ReplicationError):
    status = 115
    retriable = True
    cause = "Noting down how far apps or followers have come failed."
    fix = "Check the disk of the broker that reports it; until it is cured, messages may be delivered again."


class ReplicaStateError(ReplicationError):
    status = 116
    retriable = True
    cause = "The replica is not in the state that this needs; it may just have lost the leadership."
    fix = "Refresh the metadata and ask the new leader."


class ReplicaShortageError(ReplicationError):
    status = 117
    retriable = True
    cause = "Too few replicas are in sync, and the partition group may not go on with fewer."
    fix = "Bring the missing followers back, and wait until they have caught up."


class ElectionError(ReplicationError):
    status = 150
    retriable = True
    cause = "The partition group could not elect a leader."
    fix = "Try again in a few seconds; if it lasts, check that most of the group's brokers are up."


# Storage.


class DatabaseError(StorageError):
    status = 5
    retriable = True
    cause = "The database of metadata or retries could not be read or written."
    fix = "Check that the database answers and has room, then try again."


class DiskIOError(StorageError):
    status = 91
    retriable = True
    maybe_written = True
    cause = "The disk reported an error while the store was read or written."
    fix = "Check that broker's disk and kernel log; replace a failing disk before the broker leads again."


class DiskFullError(StorageError):
    status = 94
    retriable = True
    in_seed = False
    cause = "The broker's disk is full; nothing was written."
    fix = "Free space on that broker or shorten retention; reading and acks go on meanwhile."


class SlowSyncError(StorageError):
    status = 101
    retriable = True
    maybe_written = True
    cause = "The disk did not sync the message in time."
    fix = "Check what else keeps that disk busy; a second send may make a second copy."


class WriteTimeoutError(StorageError):
    status = 108
    retriable = True
    maybe_written = True
    cause = "The message was not written within the time the producer gave."
    fix = "Check the broker's load, or allow more time; a second send may make a second copy."


class WriteError(StorageError):
    status = 109
    retriable = True
    maybe_written = True
    cause = "The journal did not take the message: the broker's disk is full, or its queue, or the partition is gone."
    fix = "Free space: `lakemq broker show` names the disk and what is needed; a second send may make a second copy."


class ReadError(StorageError):
    status = 110
    cause = "A stored message cannot be read: its bytes are damaged, or the disk fails."
    fix = "Check the disk and what is in quarantine; another replica may hold a good copy."


class RetryStoreError(StorageError):
    status = 240
    retriable = True
    in_seed = False
    cause = "Too many messages wait for a retry, or are kept as dead letters: no more are taken."
    fix = "Resend or delete dead letters (lakemq dead), or raise the limit; what failed will be delivered again."

"""The joyqueue dialect's commands: what each asks and what each answers, field after field.

As strict as a Java peer is: a payload has exactly the fields of its version, an error of the whole request is a
BOOLEAN_ACK, a code is one that Java knows.
"""

from scripted.joyqueue_bytes import Reader, WrongBytesError, read_message

BOOLEAN_ACK = -128
ANSWERED_BY_BOOLEAN_ACK = {2, 4, 6, 7}


class RefusedError(Exception):
    """A BOOLEAN_ACK with a status."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


# What each command asks.


def write_topics(writer, topics, app):
    return writer.array(topics, writer.string2).string2(app)


def write_add_connection(
    writer, app, token, *, user="", password="", region="", namespace="", language=0, version="4.2.8", ip, at, sequence
):
    for text in (user, password, app, token, region, namespace):
        writer.string1(text)
    return writer.byte(language).string1(version).string1(ip).long(at).long(sequence)


def write_add(writer, topics, app, sequence):
    """ADD_CONSUMER and ADD_PRODUCER."""
    return write_topics(writer, topics, app).long(sequence)


def write_fetch_assigned_partition(writer, wishes, app):
    def one(wish):
        topic, session_timeout, is_nearby = wish
        writer.string2(topic).int(session_timeout).boolean(is_nearby)

    return writer.array(wishes, one).string2(app)


def write_fetch_topic_message(writer, topics, app, ack_timeout, long_poll):
    writer.array(topics, lambda one: writer.string2(one[0]).short(one[1]))
    return writer.string2(app).int(ack_timeout).int(long_poll)


def _write_by_partition(writer, topics, app, write):
    def one(entry):
        topic, partitions = entry
        writer.string2(topic).array(partitions, write)

    return writer.array(topics, one).string2(app)


def write_fetch_partition_message(writer, topics, app):
    return _write_by_partition(writer, topics, app, lambda place: writer.short(place[0]).int(place[1]).long(place[2]))


def write_commit_ack(writer, topics, app):
    def partition(entry):
        number, acks = entry
        writer.short(number).array(acks, lambda ack: writer.short(number).long(ack[0]).byte(ack[1]))

    return _write_by_partition(writer, topics, app, partition)


def write_commit_ack_index(writer, topics, app):
    return _write_by_partition(writer, topics, app, lambda place: writer.short(place[0]).long(place[1]))


def write_fetch_index(writer, topics, app):
    return _write_by_partition(writer, topics, app, writer.short)


def write_produce_message(writer, topics, app, qos, tx_id, timeout):
    def one(entry):
        topic, messages = entry
        writer.string2(topic).string2(tx_id).int(timeout).byte(qos).array(messages, writer.raw)

    return writer.array(topics, one).string2(app)


def write_prepare(writer, topic, app, sequence, transaction_id, timeout):
    return writer.string2(topic).string2(app).long(sequence).string2(transaction_id).int(timeout)


def write_end_of_transaction(writer, topic, app, tx_id):
    return writer.string2(topic).string2(app).string2(tx_id)


def write_fetch_feedback(writer, topic, app, status, long_poll):
    return writer.string2(app).string2(topic).byte(status).int(long_poll)


# What each command answers.


def read_add_connection(reader):
    return reader.string1(), reader.string2()


def read_add(reader):
    return reader.array(lambda: (reader.string2(), reader.string2()))


def read_fetch_health(reader):
    return reader.double()


def read_fetch_cluster(reader):
    return reader.array(lambda: _read_topic(reader)), reader.array(lambda: _read_broker(reader))


def _read_topic(reader):
    topic = {"topicCode": reader.string2()}
    topic["producerPolicy"] = _read_producer_policy(reader) if reader.boolean() else None
    topic["consumerPolicy"] = _read_consumer_policy(reader) if reader.boolean() else None
    topic["type"] = reader.byte()
    if topic["type"] not in (0, 1):
        raise WrongBytesError(f"Java fails on the topic type {topic['type']}")
    topic["partitionGroups"] = reader.array(
        lambda: {"id": reader.int(), "leader": reader.int(), "partitions": reader.array(reader.short)}
    )
    topic["code"] = reader.code()
    if reader.version >= 4:
        topic["params"] = reader.array(lambda: (reader.string2(), reader.string2()))
    return topic


def _read_producer_policy(reader):
    return {
        "isNearby": reader.boolean(),
        "isSingle": reader.boolean(),
        "isArchive": reader.boolean(),
        "weight": reader.array(lambda: (reader.string2(), reader.short())),
        "blackList": reader.array(reader.string2),
        "timeout": reader.int(),
    }


def _read_consumer_policy(reader):
    policy = {name: reader.boolean() for name in ("isNearby", "isPaused", "isArchive", "isRetry", "isSeq")}
    policy |= {"ackTimeout": reader.int(), "batchSize": reader.short()}
    if reader.byte() != 0:
        raise WrongBytesError("the dead flag of a consumer policy is not 0")
    policy |= {"concurrent": reader.int(), "delay": reader.int(), "blackList": reader.array(reader.string2)}
    return policy | {name: reader.int() for name in ("errTimes", "maxPartitionNum", "readRetryProbability")}


def _read_broker(reader):
    broker = {"id": reader.int()} | _read_place(reader)
    if reader.version >= 2:
        broker |= {"sysCode": reader.int(), "permission": reader.int()}
    return broker


def _read_place(reader):
    return {
        "host": reader.string2(),
        "port": reader.int(),
        "dataCenter": reader.string2(),
        "nearby": reader.boolean(),
        "weight": reader.int(),
    }


def read_find_coordinator(reader):
    def one():
        topic, broker_id = reader.string2(), reader.int()
        broker = _read_place(reader) if broker_id != -1 else None
        return {"topic": topic, "id": broker_id, "broker": broker, "code": reader.code()}

    return reader.array(one)


def read_fetch_assigned_partition(reader):
    return reader.array(lambda: (reader.string2(), reader.array(reader.short), reader.code()))


def _read_messages(reader):
    return reader.array(lambda: read_message(reader))


def read_fetch_topic_message(reader):
    return reader.array(lambda: (reader.string2(), _read_messages(reader), reader.code()))


def read_fetch_partition_message(reader):
    def partition():
        return reader.short(), _read_messages(reader), reader.code()

    return reader.array(lambda: (reader.string2(), reader.array(partition)))


def read_commit_ack(reader):
    return reader.array(lambda: (reader.string2(), reader.array(lambda: (reader.short(), reader.code()))))


def read_fetch_index(reader):
    def partition():
        found = reader.short(), reader.long(), reader.code()
        return (*found, reader.long(), reader.long()) if reader.version >= 3 else found

    return reader.array(lambda: (reader.string2(), reader.array(partition)))


def read_produce_message(reader):
    def result():
        return reader.short(), reader.long(), reader.long()

    return reader.array(lambda: (reader.string2(), reader.code(), reader.array(result)))


def read_prepare(reader):
    return reader.string2(), reader.code()


def read_end_of_transaction(reader):
    return reader.code()


def read_fetch_feedback(reader):
    return reader.array(lambda: (reader.string2(), reader.string2(), reader.string2())), reader.code()


ANSWERS = {
    1: read_add_connection,
    3: read_add,
    5: read_add,
    8: read_fetch_health,
    10: read_fetch_cluster,
    20: read_find_coordinator,
    21: read_fetch_assigned_partition,
    30: read_fetch_topic_message,
    31: read_fetch_partition_message,
    32: read_commit_ack,
    33: read_commit_ack,
    35: read_fetch_index,
    50: read_produce_message,
    51: read_prepare,
    52: read_end_of_transaction,
    53: read_end_of_transaction,
    54: read_fetch_feedback,
}


def open_ack(number, header, payload):
    """What a request of type `number` was answered; RefusedError for a BOOLEAN_ACK with a status."""
    if header["type"] == BOOLEAN_ACK:
        Reader(payload).end()
        if header["status"]:
            if not header["error"]:
                raise WrongBytesError(f"status {header['status']} comes without a text")
            raise RefusedError(header["status"], header["error"])
        if number not in ANSWERED_BY_BOOLEAN_ACK:
            raise WrongBytesError(f"a BOOLEAN_ACK without a status answers type {number}")
        return None
    if header["type"] != -number or number not in ANSWERS:
        raise WrongBytesError(f"type {header['type']} answers type {number}: Java has no decoder for it")
    if header["status"]:
        raise WrongBytesError(f"status {header['status']} under the ordinary type closes a Java peer's connection")
    reader = Reader(payload, header["version"])
    value = ANSWERS[number](reader)
    reader.end()
    return value

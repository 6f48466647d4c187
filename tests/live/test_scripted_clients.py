"""A real broker before two witnesses: clients made from the protocol's descriptions, which share no code with it.

Each goes through every command of its dialect; then they send to each other through one topic, and every byte of a
payload must arrive. A test has a topic and an app of its own; one broker in dev mode serves them all.
"""

import contextlib
import itertools
import re
import struct
import time

import pytest

import lakemq
from fix_live import live_broker, shown_stderr, strict_broker
from scripted import documented_bytes, joyqueue, joyqueue_bytes
from scripted.speakers import (
    DOCUMENTED,
    FLUSH,
    JOYQUEUE_2,
    JOYQUEUE_4,
    NO,
    PARTITION_COUNT,
    RECEIVE,
    SPEAKERS,
    WRITE,
    bodies_of,
    indexes_of,
    refused_code,
)

__all__ = ["live_broker", "shown_stderr", "strict_broker"]

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("shown_stderr")]

every_speaker = pytest.mark.parametrize("speaker", SPEAKERS, ids=str)
# Before ADD_CONNECTION nothing but the version tells the dialects apart, so 2 is left out.
every_newcomer = pytest.mark.parametrize("speaker", [DOCUMENTED, JOYQUEUE_4], ids=str)

_NUMBERS = itertools.count(1)
HEARTBEAT, FETCH_CLUSTER = 7, 10
ALL_PARTITIONS = list(range(PARTITION_COUNT))


@pytest.fixture
def app():
    return f"app-{next(_NUMBERS)}"


@pytest.fixture
def topic():
    return f"topic-{next(_NUMBERS)}"


@pytest.fixture
def opened():
    """The connections of a test; what the broker says on them that nobody asked for is seen at the end."""
    clients = []
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def open_connection(live_broker, opened, app):
    """Open a connection and say nothing."""

    def open_one(speaker, **options):
        opened.append(speaker.open(live_broker.port, app, **options))
        return opened[-1]

    return open_one


@pytest.fixture
def connect(live_broker, opened, app):
    """Open a connection and say who is there."""

    def connect_one(speaker, of_app=app, **names):
        opened.append(speaker.connect(live_broker.port, of_app, **names))
        return opened[-1]

    return connect_one


@pytest.fixture
def consumer(connect, topic):
    """Open a connection that may fetch from the test's topic."""

    def consume(speaker, *, of_app=None):
        client = connect(speaker)
        client.add_consumer([topic], of_app)
        return client

    return consume


def elapsed_ms(since_s):
    return (time.monotonic() - since_s) * 1000


# Every command, one after the other.


@every_speaker
def test_every_command_of_the_catalogue_is_answered_in_its_layout(speaker, connect, topic, app):
    client = connect(speaker)  # 1
    assert client.heartbeat() is None  # 7
    assert 0.0 < client.fetch_health() <= 100.0  # 8
    (entry,), brokers = client.fetch_cluster([topic])  # 10
    assert (entry["topicCode"], entry["code"], len(brokers)) == (topic, 0, 1)
    ((name, producer_id),) = client.add_producer([topic])  # 5
    assert name == topic
    assert producer_id
    ((name, consumer_id),) = client.add_consumer([topic])  # 3
    assert name == topic
    assert consumer_id
    (coordinator,) = client.find_coordinator([topic])  # 20
    assert (coordinator["topic"], coordinator["code"]) == (topic, 0)
    ((name, partitions, code),) = client.fetch_assigned_partition([(topic, 60_000, False)])  # 21
    assert (name, sorted(partitions), code) == (topic, ALL_PARTITIONS, 0)
    assert speaker.send(client, topic, b"one", b"two", partition=2)  # 50
    (first, second) = speaker.receive(client, topic)  # 30
    assert bodies_of([first, second]) == [b"one", b"two"]
    assert speaker.fetch(client, topic, 2, -1) == ([first, second], 0)  # 31
    assert speaker.ack(client, topic, [first, second]) == 0  # 32
    assert client.commit_ack_index([(topic, [(2, 1)])]) == [(topic, [(2, 0)])]  # 33
    if speaker.is_documented:
        assert client.fetch_ack_index([(topic, [2])]) == [(topic, [(2, 1, 0)])]  # 34
    else:
        assert refused_code(speaker, lambda: client.fetch_ack_index([(topic, [2])])) == 27
    assert speaker.ack_index(client, topic, 2) == 1  # 35
    for end in (client.commit, client.rollback):  # 52, 53
        tx_id, code = client.prepare(topic, transaction_id="tx")  # 51
        assert (bool(tx_id), code) == (True, 0)
        assert end(topic, tx_id) == 0
        assert refused_code(speaker, lambda end=end: end(topic, "no-such-tx")) == 138
    assert client.fetch_feedback(topic) == ([], 0)  # 54
    assert client.remove_producer([topic]) is None  # 6
    assert client.remove_consumer([topic]) is None  # 4
    assert client.remove_connection() is None  # 2


# Connections.


@every_speaker
def test_a_connection_keeps_its_id_and_another_has_another(speaker, open_connection):
    one, other = open_connection(speaker), open_connection(speaker)
    connection_id, _ = one.add_connection()
    assert connection_id
    if speaker.is_documented:
        assert refused_code(speaker, one.add_connection) == 131
    else:
        assert one.add_connection()[0] == connection_id
    assert other.add_connection()[0] != connection_id


@every_speaker
def test_a_second_add_connection_does_not_change_whose_the_connection_is(speaker, connect, topic, app):
    client = connect(speaker)
    with contextlib.suppress(speaker.refused):
        client.add_connection(app=f"{app}-other")
    client.add_consumer([topic], app)
    assert refused_code(speaker, lambda: client.add_consumer([topic], f"{app}-other")) == 132


@every_newcomer
def test_heartbeat_and_health_are_answered_before_add_connection(speaker, open_connection):
    client = open_connection(speaker)
    assert client.heartbeat() is None
    assert client.fetch_health() > 0.0
    assert client.add_connection()[0]


BEFORE_CONNECTING = {
    "REMOVE_CONNECTION": lambda client, topic: client.remove_connection(),
    "ADD_CONSUMER": lambda client, topic: client.add_consumer([topic]),
    "REMOVE_CONSUMER": lambda client, topic: client.remove_consumer([topic]),
    "ADD_PRODUCER": lambda client, topic: client.add_producer([topic]),
    "REMOVE_PRODUCER": lambda client, topic: client.remove_producer([topic]),
    "FETCH_CLUSTER": lambda client, topic: client.fetch_cluster([topic]),
    "FIND_COORDINATOR": lambda client, topic: client.find_coordinator([topic]),
    "FETCH_ASSIGNED_PARTITION": lambda client, topic: client.fetch_assigned_partition([(topic, 60_000, False)]),
    "FETCH_TOPIC_MESSAGE": lambda client, topic: client.fetch_topic_message([(topic, 1)]),
    "FETCH_PARTITION_MESSAGE": lambda client, topic: client.fetch_partition_message([(topic, [(0, 1, 0)])]),
    "COMMIT_ACK": lambda client, topic: client.commit_ack([(topic, [(0, [(0, 0)])])]),
    "COMMIT_ACK_INDEX": lambda client, topic: client.commit_ack_index([(topic, [(0, 0)])]),
    "FETCH_INDEX": lambda client, topic: client.fetch_index([(topic, [0])]),
    "PRODUCE_MESSAGE": lambda client, topic: client.produce_message([(topic, [])]),
    "PRODUCE_MESSAGE_PREPARE": lambda client, topic: client.prepare(topic),
    "PRODUCE_MESSAGE_COMMIT": lambda client, topic: client.commit(topic, "tx"),
    "PRODUCE_MESSAGE_ROLLBACK": lambda client, topic: client.rollback(topic, "tx"),
    "FETCH_PRODUCE_FEEDBACK": lambda client, topic: client.fetch_feedback(topic),
}


@every_newcomer
@pytest.mark.parametrize("command", BEFORE_CONNECTING)
def test_a_command_before_add_connection_is_refused_and_the_connection_goes_on(
    speaker, command, open_connection, topic
):
    client = open_connection(speaker)
    with pytest.raises(speaker.refused) as refused:
        BEFORE_CONNECTING[command](client, topic)
    assert refused.value.status == 132
    assert client.add_connection()[0]


@every_speaker
def test_after_remove_connection_the_connection_is_nobodys_again(speaker, connect, topic):
    client = connect(speaker)
    assert client.remove_connection() is None
    assert refused_code(speaker, lambda: client.fetch_cluster([topic])) == 132
    assert client.heartbeat() is None


@every_speaker
def test_another_apps_name_is_refused_and_a_group_of_ones_own_is_not(speaker, connect, topic, app):
    client = connect(speaker)
    assert refused_code(speaker, lambda: client.add_consumer([topic], "somebody-else")) == 132
    assert refused_code(speaker, lambda: client.add_producer([topic], f"{app}-2")) == 132
    ((name, consumer_id),) = client.add_consumer([topic], f"{app}.east")
    assert name == topic
    assert consumer_id


@pytest.mark.parametrize("speaker", [DOCUMENTED, JOYQUEUE_4], ids=str)
def test_a_strict_broker_refuses_who_has_no_token(speaker, strict_broker):
    with speaker.open(strict_broker.port, "nobody") as client:
        with pytest.raises(speaker.refused) as refused:
            client.add_connection(token="wrong")
        assert refused.value.status == 2
        assert refused_code(speaker, lambda: client.fetch_cluster(["orders"])) == 132


# Bytes that are no request.


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        struct.pack(">iIBBib", 4000, 0xCAFEBEBF, 2, 2, 1, 1) + bytes(8),
        struct.pack(">iIBBibq", 23, 0xCAFEBEBE, 2, 2, 1, 125, 0),
        struct.pack(">iIBBibq", 22, 0xCAFEBEBE, 2, 2, 1, 7, 0),
        struct.pack(">iIBBibq", -1, 0xCAFEBEBE, 2, 2, 1, 7, 0),
    ],
    ids=["ssh", "wrong-magic", "unknown-type", "too-short", "negative-length"],
)
def test_what_begins_as_no_frame_ends_without_an_answer(data, open_connection):
    client = open_connection(DOCUMENTED)
    client.send_bytes(data)
    client.wait_for_end()


def test_a_first_request_of_neither_dialect_is_refused_and_the_connection_ends(open_connection):
    client = open_connection(DOCUMENTED)
    pending = client.send(1, b"\x00\x01a\xff\xff")
    with pytest.raises(documented_bytes.RefusedError) as refused:
        pending.answer()
    assert refused.value.status == 107
    client.wait_for_end()


@every_speaker
@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iIBBibq", 23, 0xCAFEBEBF, 2, 2, 1, 7, 0),
        struct.pack(">iIBBibq", 22, 0xCAFEBEBE, 2, 2, 1, 7, 0),
        struct.pack(">iIBBibq", (8 << 20) + 1, 0xCAFEBEBE, 2, 2, 1, 7, 0),
    ],
    ids=["wrong-magic", "too-short", "too-long"],
)
def test_a_frame_that_cannot_be_bounded_ends_the_connection(speaker, data, connect):
    client = connect(speaker)
    client.send_bytes(data)
    client.wait_for_end()


@every_newcomer
def test_a_frame_may_arrive_byte_by_byte(speaker, open_connection):
    client = open_connection(speaker)
    send_whole, client.send_bytes = (
        client.send_bytes,
        lambda data: [send_whole(data[i : i + 1]) for i in range(len(data))],
    )
    assert client.add_connection()[0]
    assert client.heartbeat() is None


@every_speaker
@pytest.mark.parametrize("number", [120, 100, 9, 127])
def test_an_unknown_type_is_refused_and_the_connection_goes_on(speaker, number, connect):
    client = connect(speaker)
    with pytest.raises(speaker.refused) as refused:
        client.send(number, b"whatever").answer()
    assert refused.value.status == speaker.unknown_type_status
    assert client.heartbeat() is None


GARBAGE = {
    "nothing": b"",
    "a count without elements": struct.pack(">h", 1000),
    "a string beyond the end": struct.pack(">hh", 1, 32767) + b"abc",
    "no utf-8": struct.pack(">hh", 1, 2) + b"\xff\xfe" + struct.pack(">h", 0) + bytes(32),
    "noise": bytes(range(1, 200)),
}


@every_speaker
@pytest.mark.parametrize("number", [3, 5, 10, 20, 21, 30, 31, 32, 33, 35, 50])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_payload_that_cannot_be_read_is_refused_and_the_connection_goes_on(speaker, number, garbage, connect):
    client = connect(speaker)
    with pytest.raises(speaker.refused) as refused:
        client.send(number, GARBAGE[garbage]).answer()
    assert refused.value.status == speaker.undecodable_status
    assert client.heartbeat() is None


@every_speaker
def test_bytes_after_the_last_field_are_ignored(speaker, connect, topic, app):
    client = connect(speaker)
    payload = struct.pack(">hh", 1, len(topic)) + topic.encode() + struct.pack(">h", len(app)) + app.encode()
    (entry,), _ = client.send(FETCH_CLUSTER, payload + b"room to grow").answer()
    assert entry["topicCode"] == topic


@every_speaker
def test_a_response_that_reaches_the_broker_is_dropped(speaker, connect):
    client = connect(speaker)
    client.send_bytes(documented_bytes.frame(-HEARTBEAT, 77, version=client.version, is_response=True))
    assert client.heartbeat() is None


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("speaker", [DOCUMENTED, JOYQUEUE_4], ids=["documented", "joyqueue"])
def test_each_version_is_answered_in_its_own_layout(speaker, version, live_broker, topic, app):
    with speaker.client_class(live_broker.port, app, version=version) as client:
        client.add_connection()
        client.heartbeat()
        (entry,), (broker,) = client.fetch_cluster([topic])
        assert ("params" in entry) == (not speaker.is_documented and version >= 4)
        assert broker.get("permission", 3) == 3
        assert ("permission" in broker) == (not speaker.is_documented and version >= 2)
        ((_, ((_, _, code, *ends),)),) = client.fetch_index([(topic, [0])])
        assert code == 0
        assert len(ends) == (2 if not speaker.is_documented and version >= 3 else 0)


# Metadata and the coordinator.


@every_speaker
def test_the_metadata_name_the_partitions_their_leader_and_both_policies(speaker, connect, live_broker, topic):
    client = connect(speaker)
    (entry,), (broker,) = client.fetch_cluster([topic])
    assert (entry["topicCode"], entry["type"], entry["code"]) == (topic, 0, 0)
    groups = entry["partitionGroups"]
    assert sorted(partition for group in groups for partition in group["partitions"]) == ALL_PARTITIONS
    assert {group["leader"] for group in groups} == {broker["id"]}
    assert (broker["host"], broker["port"]) == ("127.0.0.1", live_broker.port)
    assert broker["nearby"] is True
    producer, consumer = entry["producerPolicy"], entry["consumerPolicy"]
    assert (producer["timeout"], producer["weight"], producer["blackList"]) == (2000, [], [])
    assert not any(producer[name] for name in ("isNearby", "isSingle"))
    assert (consumer["isRetry"], consumer["ackTimeout"], consumer["batchSize"]) == (True, 300_000, 1000)
    assert (consumer["delay"], consumer["errTimes"], consumer["blackList"]) == (0, 3, [])
    assert (consumer["maxPartitionNum"], consumer["readRetryProbability"]) == (2147483647, 20)
    assert not any(consumer[name] for name in ("isNearby", "isPaused", "isSeq"))
    assert consumer["concurrentPrefetchSize" if speaker.is_documented else "concurrent"] == 1


@every_speaker
def test_the_metadata_have_an_entry_for_every_topic_asked_for(speaker, connect, topic):
    topics = [f"{topic}-b", topic, f"{topic}-a"]
    entries, brokers = connect(speaker).fetch_cluster(topics)
    assert [(entry["topicCode"], entry["code"]) for entry in entries] == [(name, 0) for name in topics]
    assert len(brokers) == 1


@every_speaker
def test_the_coordinator_can_be_reached_and_assigns_every_partition_to_the_only_member(
    speaker, connect, live_broker, topic, app
):
    client = connect(speaker)
    topics = [topic, f"{topic}-2"]
    client.fetch_cluster(topics)
    found = client.find_coordinator(topics)
    assert [(each["topic"], each["code"]) for each in found] == [(name, 0) for name in topics]
    assert {(each["broker"]["host"], each["broker"]["port"]) for each in found} == {("127.0.0.1", live_broker.port)}
    wishes = [(name, 60_000, False) for name in topics]
    assigned = client.fetch_assigned_partition(wishes)
    assert [(name, sorted(partitions), code) for name, partitions, code in assigned] == [
        (name, ALL_PARTITIONS, 0) for name in topics
    ]


# Producers and consumers.


@every_speaker
def test_adding_twice_gives_the_same_id(speaker, connect, topic):
    client = connect(speaker)
    assert client.add_consumer([topic]) == client.add_consumer([topic])
    assert client.add_producer([topic]) == client.add_producer([topic])


@every_speaker
def test_many_add_consumer_at_once_give_one_id(speaker, connect, topic):
    client = connect(speaker)
    pending = [client.begin_add_consumer([topic]) for _ in range(10)]
    ids = [each.answer() for each in reversed(pending)]
    assert [name for ((name, _),) in ids] == [topic] * 10
    assert len({consumer_id for ((_, consumer_id),) in ids}) == 1


@every_speaker
def test_an_id_is_given_for_every_topic(speaker, connect, topic):
    client = connect(speaker)
    topics = [topic, f"{topic}-2", f"{topic}-3"]
    for ids in (client.add_consumer(topics), client.add_producer(topics)):
        assert [name for name, _ in ids] == topics
        assert all(each for _, each in ids)


@every_speaker
def test_removing_what_was_never_added_does_no_harm(speaker, connect, topic):
    client = connect(speaker)
    assert client.remove_consumer([topic, f"{topic}-2"]) is None
    assert client.remove_producer([topic]) is None


# Producing.


@every_speaker
def test_one_request_may_hold_many_topics_with_many_messages(speaker, connect, topic):
    client = connect(speaker)
    other = f"{topic}-2"
    sent = 1_700_000_000_000
    entries = [
        (topic, [speaker.message(b"%d" % n, partition=1, send_time=sent + n, app=client.app) for n in range(3)]),
        (other, [speaker.message(b"x", partition=3, send_time=sent, app=client.app)]),
    ]
    answer = client.produce_message(entries, **speaker.levels[FLUSH])
    assert [(name, code) for name, code, _ in answer] == [(topic, 0), (other, 0)]
    (_, _, results), (_, _, other_results) = answer
    assert [(partition, index) for partition, index, _ in results] == [(1, 0), (1, 1), (1, 2)]
    assert [(partition, index) for partition, index, _ in other_results] == [(3, 0)]
    if not speaker.is_documented:
        assert [start for _, _, start in results + other_results] == [sent, sent + 1, sent + 2, sent]
    assert bodies_of(speaker.fetch(client, topic, 1, 0)[0]) == [b"0", b"1", b"2"]
    assert bodies_of(speaker.fetch(client, other, 3, 0)[0]) == [b"x"]


@every_speaker
def test_indexes_go_on_from_request_to_request_and_are_each_partitions_own(speaker, connect, topic):
    client = connect(speaker)
    assert [index for _, index, _ in speaker.send(client, topic, b"a", b"b", partition=0)] == [0, 1]
    assert [index for _, index, _ in speaker.send(client, topic, b"c", partition=0)] == [2]
    assert [index for _, index, _ in speaker.send(client, topic, b"d", partition=1)] == [0]


@pytest.mark.parametrize(
    ("speaker", "level"),
    [
        pytest.param(speaker, level, id=f"{speaker}-{level}")
        for speaker in SPEAKERS
        for level in speaker.levels
        if level != NO
    ],
)
def test_a_level_that_wants_an_answer_gets_one_and_the_message_is_delivered(speaker, level, consumer, topic):
    client = consumer(speaker)
    ((partition, index, _),) = speaker.send(client, topic, b"body", partition=1, level=level)
    assert partition == 1
    assert index in ((-1, 0) if level == RECEIVE else (0,))
    (message,) = speaker.receive(client, topic)
    assert (message["body"], message["partition"], message["index"]) == (b"body", 1, 0)


@every_speaker
def test_level_no_gets_no_answer_and_the_message_is_delivered(speaker, consumer, topic):
    client = consumer(speaker)
    for n in range(5):
        assert speaker.send(client, topic, b"%d" % n, partition=1, level=NO) is None
    received = []
    while len(received) < 5:
        messages = speaker.receive(client, topic)
        received += bodies_of(messages)
        assert speaker.ack(client, topic, messages) == 0
    assert received == [b"%d" % n for n in range(5)]
    assert client.heartbeat() is None  # and an answer to one of the five would be an error of the client


@pytest.mark.parametrize(
    ("header_qos", "qos"),
    [
        (documented_bytes.ACK_RECEIVE, documented_bytes.ACK_NO),
        (documented_bytes.ACK_FLUSH, documented_bytes.ACK_NO),
        (documented_bytes.ACK_NO, documented_bytes.ACK_FLUSH),
        (documented_bytes.ACK_NO, documented_bytes.ACK_WRITE),
        (documented_bytes.ACK_NO, documented_bytes.ACK_RECEIVE),
    ],
)
def test_of_header_and_body_the_stronger_level_counts(header_qos, qos, connect, topic):
    client = connect(DOCUMENTED)
    message = DOCUMENTED.message(b"x", partition=0, app=client.app)
    ((_, code, results),) = client.produce_message([(topic, [message])], qos=qos, header_qos=header_qos)
    assert (code, len(results)) == (0, 1)


@pytest.mark.parametrize("speaker", [JOYQUEUE_4, JOYQUEUE_2], ids=str)
@pytest.mark.parametrize("qos", [joyqueue_bytes.ONE_WAY, 5, -1])
def test_joyqueues_header_decides_whether_there_is_an_answer(speaker, qos, connect, topic):
    client = connect(speaker)
    message = speaker.message(b"x", partition=0, app=client.app)
    ((_, code, results),) = client.produce_message([(topic, [message])], qos=qos, header_qos=1)
    assert (code, len(results)) == (0, 1)


@pytest.mark.parametrize("speaker", [JOYQUEUE_4, JOYQUEUE_2], ids=str)
@pytest.mark.parametrize("bits", [0, 2, 3])
def test_other_commands_than_produce_are_answered_whatever_the_header_asks(speaker, bits, connect):
    client = connect(speaker)
    assert client.send(HEARTBEAT, qos=bits).answer() is None
    assert client.send(8, qos=bits).answer() > 0.0


@every_speaker
def test_the_broker_chooses_a_partition_where_the_message_names_none(speaker, consumer, topic):
    client = consumer(speaker)
    results = speaker.send(client, topic, b"a", b"b", b"c", partition=-1)
    (partition,) = {partition for partition, _, _ in results}
    assert partition in ALL_PARTITIONS
    assert [index for _, index, _ in results] == [0, 1, 2]
    assert {message["partition"] for message in speaker.receive(client, topic)} == {partition}


@every_speaker
def test_messages_of_one_entry_must_name_one_partition(speaker, connect, topic):
    client = connect(speaker)
    mixed = [speaker.message(b"x", partition=partition, app=client.app) for partition in (0, 1)]
    assert speaker.refusal(client, topic, *mixed) == 6
    assert speaker.refusal(client, topic) == 6
    for partition in (0, 1):
        assert speaker.fetch(client, topic, partition, 0) == ([], 0)


@every_speaker
def test_a_partition_that_does_not_exist_takes_nothing(speaker, connect, topic):
    client = connect(speaker)
    client.fetch_cluster([topic])
    assert speaker.refusal(client, topic, speaker.message(b"x", partition=99, app=client.app)) in (109, 188)
    ((_, ((_, index, code, *_),)),) = client.fetch_index([(topic, [99])])
    assert code != 0
    assert index == -1
    assert speaker.fetch(client, topic, 99, 0)[1] != 0


@every_speaker
def test_an_entry_that_fails_leaves_the_others_alone(speaker, connect, topic):
    client = connect(speaker)
    good = speaker.message(b"good", partition=0, app=client.app)
    long_id = speaker.message(b"bad", partition=0, business_id="i" * 101, app=client.app)
    answer = client.produce_message([(topic, [good, long_id]), (f"{topic}-2", [good])], **speaker.levels[FLUSH])
    assert [(name, code) for name, code, _ in answer] == [(topic, 6), (f"{topic}-2", 0)]
    assert speaker.fetch(client, topic, 0, 0) == ([], 0)


def test_a_wrong_crc_is_refused_from_a_documented_client(connect, topic):
    client = connect(DOCUMENTED)
    wrong = DOCUMENTED.message(b"body", partition=0, crc=12345, app=client.app)
    assert DOCUMENTED.refusal(client, topic, wrong) == 8


@pytest.mark.parametrize("crc", [0, -1])
def test_a_crc_that_was_left_out_is_no_error(crc, connect, topic):
    client = connect(DOCUMENTED)
    DOCUMENTED.produce(client, topic, DOCUMENTED.message(b"body", partition=0, crc=crc, app=client.app))
    ((message,), _) = DOCUMENTED.fetch(client, topic, 0, 0)
    assert message["body"] == b"body"


@pytest.mark.parametrize("crc", [0, -1, 12345])
def test_any_crc_is_taken_from_a_joyqueue_client_and_made_anew(crc, connect, topic):
    client = connect(JOYQUEUE_4)
    JOYQUEUE_4.produce(client, topic, JOYQUEUE_4.message(b"body", partition=0, crc=crc, app=client.app))
    ((message,), _) = JOYQUEUE_4.fetch(client, topic, 0, 0)  # which checks the CRC
    assert message["body"] == b"body"


# Fetching by topic.


def test_who_has_not_said_add_producer_stores_nothing(connect, topic):
    client = connect(DOCUMENTED)
    client.adds_producers = False
    message = DOCUMENTED.message(b"x", partition=0, app=client.app)
    assert DOCUMENTED.refusal(client, topic, message) == 134
    client.add_producer([topic])
    ((_, index, _),) = DOCUMENTED.produce(client, topic, message)
    assert index == 0


@every_speaker
def test_who_has_not_said_add_consumer_gets_nothing(speaker, connect, topic):
    client = connect(speaker)
    speaker.send(client, topic, b"body")
    assert speaker.poll(client, topic) == ([], 136)
    client.add_consumer([topic])
    assert bodies_of(speaker.receive(client, topic)) == [b"body"]
    client.remove_consumer([topic])
    assert speaker.poll(client, topic) == ([], 136)


def test_a_failed_topic_is_named_in_the_header_and_the_others_are_served(connect, topic):
    client = connect(DOCUMENTED)
    other = f"{topic}-2"
    client.add_consumer([topic])
    DOCUMENTED.send(client, topic, b"body")
    answer = client.fetch_topic_message([(other, 10), (topic, 10)])
    assert answer["status"] == 136
    assert answer["error"]
    assert [(name, bodies_of(messages)) for name, messages in answer["data"]] == [(other, []), (topic, [b"body"])]


@every_speaker
def test_a_new_subscription_starts_at_the_oldest_message_in_dev_mode(speaker, connect, topic):
    producer = connect(speaker)
    speaker.send(producer, topic, b"old", partition=3)
    client = connect(speaker, "latecomer-" + topic)
    client.add_consumer([topic])
    assert bodies_of(speaker.receive(client, topic)) == [b"old"]


@every_speaker
def test_a_lent_partition_is_given_to_nobody_until_it_is_acked(speaker, consumer, topic):
    first, second = consumer(speaker), consumer(speaker)
    speaker.send(first, topic, b"a", b"b", partition=1)
    (lent,) = speaker.receive(first, topic, count=1)
    assert lent["body"] == b"a"
    assert speaker.poll(second, topic) == ([], 0)
    assert speaker.poll(first, topic) == ([], 0)
    assert speaker.ack(first, topic, [lent]) == 0
    (following,) = speaker.receive(second, topic, count=1)
    assert (following["body"], following["index"]) == (b"b", 1)


@every_speaker
def test_one_partition_feeds_a_reply_and_another_can_be_lent_meanwhile(speaker, consumer, topic):
    first, second = consumer(speaker), consumer(speaker)
    for partition in (0, 2):
        speaker.send(first, topic, b"a", b"b", partition=partition)
    one, other = speaker.receive(first, topic), speaker.receive(second, topic)
    assert bodies_of(one) == bodies_of(other) == [b"a", b"b"]
    assert sorted({message["partition"] for message in one + other}) == [0, 2]
    assert len({message["partition"] for message in one}) == 1
    assert speaker.poll(first, topic) == ([], 0)


@every_speaker
def test_a_lease_ends_with_its_time(speaker, consumer, topic):
    first, second = consumer(speaker), consumer(speaker)
    speaker.send(first, topic, b"body")
    began_s = time.monotonic()
    (lent,) = speaker.receive(first, topic, ack_timeout=300)
    (again,) = speaker.receive(second, topic, long_poll=8000)
    assert elapsed_ms(began_s) >= 300
    assert (again["partition"], again["index"], again["body"]) == (lent["partition"], lent["index"], b"body")


@every_speaker
def test_a_lease_ends_with_its_connection(speaker, consumer, topic):
    first, second = consumer(speaker), consumer(speaker)
    speaker.send(second, topic, b"body")
    assert bodies_of(speaker.receive(first, topic)) == [b"body"]
    assert speaker.poll(second, topic) == ([], 0)
    first.drop()
    assert bodies_of(speaker.receive(second, topic)) == [b"body"]


@every_speaker
def test_a_lease_ends_when_its_consumer_is_removed(speaker, consumer, topic):
    first, second = consumer(speaker), consumer(speaker)
    speaker.send(second, topic, b"body")
    assert bodies_of(speaker.receive(first, topic)) == [b"body"]
    first.remove_consumer([topic])
    assert bodies_of(speaker.receive(second, topic)) == [b"body"]


@every_speaker
def test_groups_of_an_app_do_not_take_messages_from_each_other(speaker, connect, topic, app):
    client = connect(speaker)
    speaker.send(client, topic, b"body")
    for group in (app, f"{app}.east", f"{app}.west"):
        client.add_consumer([topic], group)
        messages = speaker.receive(client, topic, group)
        assert bodies_of(messages) == [b"body"]
        assert speaker.ack(client, topic, messages, group) == 0
        assert speaker.ack_index(client, topic, 0, group) == 1


@every_speaker
def test_the_count_limits_indexes_and_a_batch_comes_whole(speaker, consumer, topic):
    client = consumer(speaker)
    speaker.send(client, topic, b"a", b"b", b"c", partition=0)
    batch = speaker.codec.batch([{"body": b"%d" % n} for n in range(5)], partition=0, app=client.app)
    assert [index for _, index, _ in speaker.produce(client, topic, batch)] == [3]
    lent = speaker.receive(client, topic, count=2)
    assert bodies_of(lent) == [b"a", b"b"]
    assert speaker.ack(client, topic, lent) == 0
    lent = speaker.receive(client, topic, count=2)
    assert bodies_of(lent) == [b"c", b"0", b"1", b"2", b"3", b"4"]
    assert [list(indexes_of(message)) for message in lent] == [[2], [3, 4, 5, 6, 7]]
    assert speaker.ack(client, topic, lent) == 0
    assert speaker.ack_index(client, topic, 0) == 8


# Long polls.


@every_speaker
def test_a_long_poll_that_finds_nothing_ends_empty_with_code_0_when_its_time_is_over(speaker, consumer, topic):
    client = consumer(speaker)
    began_s = time.monotonic()
    assert speaker.poll(client, topic, long_poll=400) == ([], 0)
    assert 400 <= elapsed_ms(began_s) < 5000


@every_speaker
def test_a_poll_without_a_time_does_not_wait(speaker, consumer, topic):
    client = consumer(speaker)
    began_s = time.monotonic()
    assert speaker.poll(client, topic) == ([], 0)
    assert elapsed_ms(began_s) < 2000


@every_speaker
def test_a_poll_of_several_topics_does_not_wait(speaker, connect, topic):
    client = connect(speaker)
    topics = [topic, f"{topic}-2"]
    client.add_consumer(topics)
    began_s = time.monotonic()
    answer = client.fetch_topic_message([(name, 10) for name in topics], long_poll=8000)
    assert [entry[:2] for entry in (answer["data"] if speaker.is_documented else answer)] == [
        (name, []) for name in topics
    ]
    assert elapsed_ms(began_s) < 5000


@every_speaker
def test_a_long_poll_wakes_on_append_and_holds_up_nobody_meanwhile(speaker, consumer, connect, topic):
    client, producer = consumer(speaker), connect(speaker)
    pending = client.begin_fetch_topic_message([(topic, 10)], long_poll=60_000)
    assert client.heartbeat() is None
    (entry,), _ = client.fetch_cluster([topic])
    assert entry["code"] == 0
    assert speaker.ack_index(client, topic, 0) == 0
    assert not pending.is_answered()
    speaker.send(producer, topic, b"body", partition=3)
    messages, code = speaker.opened(pending.answer())
    assert (bodies_of(messages), code) == ([b"body"], 0)


@every_speaker
def test_a_long_poll_wakes_on_what_its_own_connection_sends(speaker, consumer, topic):
    client = consumer(speaker)
    pending = client.begin_fetch_topic_message([(topic, 10)], long_poll=60_000)
    speaker.send(client, topic, b"body", partition=1)
    messages, code = speaker.opened(pending.answer())
    assert (bodies_of(messages), code) == ([b"body"], 0)


@every_speaker
def test_long_polls_on_one_connection_each_get_a_partition(speaker, consumer, topic):
    client = consumer(speaker)
    pending = [client.begin_fetch_topic_message([(topic, 10)], long_poll=60_000) for _ in ALL_PARTITIONS]
    for partition in ALL_PARTITIONS:
        speaker.send(client, topic, b"%d" % partition, partition=partition)
    answers = [speaker.opened(each.answer()) for each in pending]
    assert {code for _, code in answers} == {0}
    assert sorted(bodies_of(message for messages, _ in answers for message in messages)) == [b"0", b"1", b"2", b"3"]
    for messages, _ in answers:
        assert speaker.ack(client, topic, messages) == 0


@every_speaker
def test_a_long_poll_that_ends_with_its_connection_takes_no_message_along(speaker, consumer, connect, topic):
    client, other = consumer(speaker), consumer(speaker)
    client.begin_fetch_topic_message([(topic, 10)], long_poll=60_000)
    client.heartbeat()
    client.drop()
    speaker.send(other, topic, b"body")
    assert bodies_of(speaker.receive(other, topic)) == [b"body"]


# Fetching by partition.


@every_speaker
def test_a_fetch_by_partition_reads_from_any_index_and_lends_nothing(speaker, connect, topic):
    client = connect(speaker)
    speaker.send(client, topic, *[b"%d" % n for n in range(5)], partition=2)
    for _ in range(2):
        messages, code = speaker.fetch(client, topic, 2, 1, count=3)
        assert (bodies_of(messages), code) == ([b"1", b"2", b"3"], 0)
    assert [message["index"] for message in messages] == [1, 2, 3]
    assert speaker.fetch(client, topic, 2, 5) == ([], 0)
    assert speaker.fetch(client, topic, 2, 6) == ([], 184)
    assert speaker.fetch(client, topic, 2, -7) == ([], 184)


@every_speaker
def test_index_minus_1_is_where_the_app_has_got_to(speaker, consumer, topic):
    client = consumer(speaker)
    speaker.send(client, topic, b"a", b"b", b"c", partition=1)
    assert bodies_of(speaker.fetch(client, topic, 1, -1)[0]) == [b"a", b"b", b"c"]
    lent = speaker.receive(client, topic, count=2)
    assert speaker.ack(client, topic, lent) == 0
    assert bodies_of(speaker.fetch(client, topic, 1, -1)[0]) == [b"c"]


@every_speaker
def test_a_fetch_by_partition_may_name_many_places(speaker, connect, topic):
    client = connect(speaker)
    other = f"{topic}-2"
    speaker.send(client, topic, b"a", b"b", partition=0)
    speaker.send(client, topic, b"c", partition=3)
    speaker.send(client, other, b"d", partition=1)
    answer = client.fetch_partition_message([(topic, [(3, 9, 0), (0, 1, 1), (1, 9, 4)]), (other, [(1, 9, 0)])])
    found = [
        (name, [(number, bodies_of(messages), code) for number, messages, code in places]) for name, places in answer
    ]
    assert found == [(topic, [(3, [b"c"], 0), (0, [b"b"], 0), (1, [], 184)]), (other, [(1, [b"d"], 0)])]


# Acks and indexes.


@every_speaker
def test_acks_may_come_in_any_order_but_not_twice(speaker, consumer, topic):
    client = consumer(speaker)
    speaker.send(client, topic, *[b"%d" % n for n in range(4)], partition=1)
    speaker.receive(client, topic)

    def ack(*indexes):
        ((_, ((_, code),)),) = client.commit_ack([(topic, [(1, [(index, 0) for index in indexes])])])
        return code, speaker.ack_index(client, topic, 1)

    assert ack(0, 1, 1) == (140, 0)
    if speaker.name == "documented":  # each message on its own; the index moves over finished runs
        assert ack(2) == (0, 0)
        assert ack(1, 0) == (0, 3)
    else:
        assert ack(0, 2) == (140, 0)
        assert ack(2, 0, 1) == (0, 3)
    assert ack(0, 1) == (0, 3)  # late, and no harm
    if speaker.name == "documented":  # what is not acked stays with its holder
        assert speaker.poll(client, topic, long_poll=0)[0] == []
        assert ack(3) == (0, 4)
    else:  # JoyQueue's server lends it anew
        assert bodies_of(speaker.receive(client, topic)) == [b"3"]


@every_speaker
def test_an_ack_is_answered_for_every_topic_and_partition(speaker, connect, topic):
    client = connect(speaker)
    other = f"{topic}-2"
    client.add_consumer([topic, other])
    for partition in (0, 1):
        speaker.send(client, topic, b"x", partition=partition)
    speaker.send(client, other, b"x", partition=2)
    for name in (topic, topic, other):
        speaker.receive(client, name)
    answer = client.commit_ack([(topic, [(0, [(0, 0)]), (1, [(0, 0), (2, 0)])]), (other, [(2, [(0, 0)])])])
    beyond = 184 if speaker.is_documented else 140  # JoyQueue's wants a run, and looks at that first
    assert answer == [(topic, [(0, 0), (1, beyond)]), (other, [(2, 0)])]


@every_speaker
def test_the_ack_index_can_be_set_within_what_is_stored(speaker, consumer, topic):
    client = consumer(speaker)
    speaker.send(client, topic, *[b"%d" % n for n in range(5)], partition=2)

    def set_to(index):
        ((name, ((number, code),)),) = client.commit_ack_index([(topic, [(2, index)])])
        assert (name, number) == (topic, 2)
        return code, speaker.ack_index(client, topic, 2)

    assert set_to(3) == (0, 3)
    assert bodies_of(speaker.fetch(client, topic, 2, -1)[0]) == [b"3", b"4"]
    assert set_to(6) == (92, 3)
    assert set_to(-5) == (93, 3)
    assert set_to(5) == (0, 5)
    assert set_to(0) == (0, 0)
    assert bodies_of(speaker.receive(client, topic)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("speaker", [JOYQUEUE_4, JOYQUEUE_2], ids=str)
def test_minus_1_sets_joyqueues_ack_index_to_the_newest_and_minus_2_to_the_oldest(speaker, connect, topic):
    client = connect(speaker)
    speaker.send(client, topic, b"a", b"b", partition=0)
    assert client.commit_ack_index([(topic, [(0, -1)])]) == [(topic, [(0, 0)])]
    assert speaker.ack_index(client, topic, 0) == 2
    assert client.commit_ack_index([(topic, [(0, -2)])]) == [(topic, [(0, 0)])]
    assert speaker.ack_index(client, topic, 0) == 0


@every_speaker
def test_fetch_index_tells_where_an_app_stands_in_every_partition(speaker, consumer, topic, app):
    client = consumer(speaker)
    speaker.send(client, topic, b"a", b"b", partition=0)
    speaker.send(client, topic, b"c", partition=3)
    client.commit_ack_index([(topic, [(0, 1)])])
    ((name, found),) = client.fetch_index([(topic, [3, 0, 1])])
    assert name == topic
    assert [place[:3] for place in found] == [(3, 0, 0), (0, 1, 0), (1, 0, 0)]
    if client.version >= 3:
        assert [place[3:] for place in found] == [(0, 1), (0, 2), (0, 0)]


# Start-up and manners of JoyQueue's own clients.


def test_an_application_of_the_java_client_starts_up_sends_and_receives(live_broker, topic, app):
    with joyqueue.JavaApplication(live_broker.port, app, topic, group="east") as java:
        assert java.partitions == ALL_PARTITIONS
        assert sorted(java.assigned) == ALL_PARTITIONS
        assert len({consumer_id for ((_, consumer_id),) in java.consumer_ids}) == 1
        assert java.indexes == dict.fromkeys(ALL_PARTITIONS, (0, 0, 0))
        polls = [
            java.consumer.begin_fetch_topic_message([(topic, 10)], java.full_app, ack_timeout=300_000, long_poll=60_000)
            for _ in java.partitions
        ]
        java.consumer.heartbeat()
        for partition in java.partitions:
            JOYQUEUE_4.send(java.producer, topic, b"%d" % partition, partition=partition, level=WRITE)
        for poll in polls:
            messages, code = JOYQUEUE_4.opened(poll.answer())
            assert code == 0
            assert bodies_of(messages) == [b"%d" % messages[0]["partition"]]
            assert JOYQUEUE_4.ack(java.consumer, topic, messages, java.full_app) == 0
        assert java._fetch_index() == dict.fromkeys(ALL_PARTITIONS, (1, 0, 1))


def test_joyqueue_python_sends_pulls_and_acks_in_its_manner(live_broker, topic, app):
    group = f"{app}.abc"
    with joyqueue.PythonClient(live_broker.port, app) as client:
        connection_id, _ = client.add_connection()
        (entry,), (broker,) = client.fetch_cluster([topic])
        assert all(each["partitions"] for each in entry["partitionGroups"])
        assert broker["permission"] == 3
        assert client.add_connection()[0] == connection_id
        client.add_producer([topic])
        client.add_consumer([topic], group)
        sent = joyqueue_bytes.python_message("héllo".encode(), business_id="biz-1", app=app)
        ((name, code, ((partition, index, _),)),) = client.produce_message([(topic, [sent])], qos=2)
        assert (name, code, partition, index) == (topic, 0, 0, 0)
        ((_, (message,), code),) = client.fetch_topic_message([(topic, 1)], group, long_poll=10_000)
        assert code == 0
        assert (message["body"], message["business_id"], message["attributes"]) == ("héllo".encode(), "biz-1", {})
        assert client.commit_ack([(topic, [(0, [(0, 0)])])], group) == [(topic, [(0, 0)])]
        assert client.fetch_index([(topic, [0])], group) == [(topic, [(0, 1, 0)])]


# Both clients through one topic.

BODY = bytes(range(256)) * 2
ODD_ATTRIBUTES = {
    "a b": " c=d ",
    "#k!": "x:y\\z",
    "中文": "值",
    "😀": "\t\n\r\f",
    "empty": "",
    "\x01\x7f": "é ",
    "u": "\\u0041",
}
ITEMS = [
    {"body": BODY, "business_id": "订单-1", "attributes": ODD_ATTRIBUTES, "priority": 3, "flag": -1},
    {"body": b"", "business_id": "", "attributes": {}, "priority": 0, "flag": 0},
    {"body": "中".encode() * 50, "business_id": "b:2", "attributes": {"k": "v"}, "priority": -1, "flag": 32767},
]
DETAILS = {
    "partition": 1,
    "priority": 5,
    "send_time": 1_700_000_000_123,
    "business_id": "订单 #1=é",
    "attributes": ODD_ATTRIBUTES,
    "extension": b"\x00\xff\x7f",
    "is_ordered": True,
}
KEPT = ("priority", "send_time", "business_id", "attributes", "extension", "is_ordered")
SENT = [
    (speaker, shape, compression)
    for speaker in SPEAKERS
    for shape in ("single", "batch")
    for compression in speaker.compressions
]


def sample(speaker, shape, compression, app):
    """One of the messages that are exchanged."""
    details = DETAILS | {"compression": compression, "app": app}
    if shape == "batch":
        return speaker.codec.batch(ITEMS, **details)
    return speaker.codec.message(BODY, flag=-3, **details)


@pytest.fixture(scope="module")
def exchange(live_broker):
    """A topic into which every client has sent each of its samples, and of each where it is, whose, and its bytes."""
    topic, places = f"exchange-{next(_NUMBERS)}", {}
    for speaker in SPEAKERS:
        app = f"sender-{speaker}"
        with speaker.connect(live_broker.port, app) as client:
            for _, shape, compression in (each for each in SENT if each[0] is speaker):
                sent = sample(speaker, shape, compression, app)
                ((partition, index, _),) = speaker.produce(client, topic, sent)
                places[speaker.name, shape, compression] = partition, index, client.address, sent
    return topic, places


@pytest.mark.parametrize("receiver", SPEAKERS, ids=lambda speaker: f"to-{speaker}")
@pytest.mark.parametrize(
    ("sender", "shape", "compression"),
    [pytest.param(*each, id=f"{each[0]}-{each[1]}-{each[2] or 'plain'}") for each in SENT],
)
def test_what_one_client_sends_every_client_gets_byte_for_byte(sender, shape, compression, receiver, exchange, connect):
    topic, places = exchange
    partition, index, address, sent = places[sender.name, shape, compression]
    (message,), code = receiver.fetch(connect(receiver), topic, partition, index, count=1)
    assert code == 0
    assert (message["partition"], message["index"]) == (partition, index)
    assert {name: message[name] for name in KEPT} == {name: DETAILS[name] for name in KEPT}
    assert message["app"] == f"sender-{sender}"
    assert message["attribute_bytes"] == documented_bytes.write_attributes(ODD_ATTRIBUTES)
    assert message["store_time"] >= 0
    if shape == "batch":
        assert message["items"] == ITEMS
        assert message["flag"] == len(ITEMS)
    else:
        assert message["body"] == BODY
        assert message["flag"] == -3
    is_known = compression in receiver.compressions
    assert message["compression"] == (compression if is_known else "zlib")
    is_marked_anew = shape == "batch" and not receiver.is_documented  # or a Java client would drop it
    assert message["source"] == (joyqueue_bytes.JOYQUEUE if is_marked_anew else sender.source)
    if sender.is_documented and receiver.is_documented:
        assert message["carried"] == documented_bytes.read_message(documented_bytes.Cursor(sent))["carried"]
    if not (sender.is_documented or receiver.is_documented):
        assert message["client_ip"] == address


@every_speaker
def test_a_client_gets_everything_of_the_topic_once_by_lease_and_ack(speaker, exchange, connect):
    topic, places = exchange
    client = connect(speaker)
    client.add_consumer([topic])
    received = []
    while len(received) < len(places):
        messages = speaker.receive(client, topic, count=3)
        received += messages
        assert speaker.ack(client, topic, messages) == 0
    assert speaker.poll(client, topic) == ([], 0)
    assert sorted((message["partition"], message["index"]) for message in received) == sorted(
        (partition, index) for partition, index, *_ in places.values()
    )
    expected = [BODY if shape == "single" else [item["body"] for item in ITEMS] for _, shape, _ in places]
    assert [
        message["body"] if message["items"] is None else [item["body"] for item in message["items"]]
        for message in sorted(received, key=lambda message: message["index"])
    ] == expected
    last = max(received, key=lambda message: message["index"])
    assert speaker.ack_index(client, topic, DETAILS["partition"]) == indexes_of(last).stop


@pytest.mark.parametrize("receiver", SPEAKERS, ids=lambda speaker: f"to-{speaker}")
def test_what_joyqueue_python_sends_every_client_gets(receiver, live_broker, connect, topic, app):
    with joyqueue.PythonClient(live_broker.port, app) as client:
        client.add_connection()
        sent = joyqueue_bytes.python_message(BODY, partition=2, business_id="订单-1", send_time=1_700_000_000, app=app)
        client.produce_message([(topic, [sent])], qos=2)
    (message,), code = receiver.fetch(connect(receiver), topic, 2, 0)
    assert code == 0
    assert (message["body"], message["business_id"], message["attributes"]) == (BODY, "订单-1", {})
    assert (message["send_time"], message["app"], message["compression"]) == (1_700_000_000, app, None)


@pytest.mark.parametrize("receiver", SPEAKERS, ids=lambda speaker: f"to-{speaker}")
@pytest.mark.parametrize("sender", SPEAKERS, ids=lambda speaker: f"from-{speaker}")
def test_attributes_that_nobody_escaped_arrive_as_they_were_sent(sender, receiver, connect, topic):
    raw = "k v\r\n# no entry\nα : β\\\n   γ".encode()
    client = connect(sender)
    sender.produce(client, topic, sender.message(b"x", partition=0, attributes=raw, app=client.app))
    (message,), code = receiver.fetch(connect(receiver), topic, 0, 0)
    assert code == 0
    assert message["attribute_bytes"] == raw
    assert message["attributes"] == {"k": "v", "α": "βγ"}


@every_speaker
def test_a_long_poll_in_one_dialect_wakes_on_an_append_in_another(speaker, consumer, connect, topic):
    client = consumer(speaker)
    for number, sender in enumerate(SPEAKERS):
        pending = client.begin_fetch_topic_message([(topic, 10)], long_poll=60_000)
        sender.send(connect(sender), topic, b"%d" % number, partition=number)
        messages, code = speaker.opened(pending.answer())
        assert (bodies_of(messages), code) == ([b"%d" % number], 0)
        assert speaker.ack(client, topic, messages) == 0


@pytest.mark.skipif(not hasattr(lakemq, "connect"), reason="LakeMQ has no client of its own yet")
def test_lakemqs_own_client_exchanges_with_both(live_broker, connect, topic, app):
    headers = {name: value for name, value in ODD_ATTRIBUTES.items() if re.fullmatch("[a-z# !中文😀]+", name)}
    speakers = {speaker.name: connect(speaker) for speaker in SPEAKERS}
    with lakemq.connect(f"lakemq://127.0.0.1:{live_broker.port}", app=app) as client:
        client.send(topic, BODY, key="订单-1", headers=headers)
        for speaker in SPEAKERS:
            group = f"{app}.{speaker}"
            speakers[speaker.name].add_consumer([topic], group)
            (message,) = speaker.receive(speakers[speaker.name], topic, group)
            found = message if message["items"] is None else message["items"][0]
            assert (found["body"], found["business_id"]) == (BODY, "订单-1")
            assert headers.items() <= found["attributes"].items()
        for speaker in SPEAKERS:
            details = {"business_id": "订单-2", "attributes": headers}
            speaker.send(speakers[speaker.name], topic, speaker.name.encode(), partition=-1, **details)
        deliveries = []
        for delivery in client.consumer(topic, group="own"):
            deliveries.append((delivery.body, delivery.key))
            assert headers.items() <= dict(delivery.headers).items()
            delivery.ack()
            if len(deliveries) == 1 + len(SPEAKERS):
                break
    assert sorted(deliveries) == sorted([(BODY, "订单-1"), *((name.encode(), "订单-2") for name in speakers)])

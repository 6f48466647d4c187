"""Every command and ack, in every form: what is written is read back, and errors are said in the dialect's way."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemq.errors import (
    BadParameterError,
    DecodeError,
    LakeMQError,
    SerializationError,
    TopicNotFoundError,
    UnknownError,
    UnsupportedCommandError,
    all_errors,
    from_status,
)
from lakemq.message import Qos
from lakemq.wire import session
from lakemq.wire.commands import (
    KINDS,
    decode_request,
    decode_response,
    encode_error,
    encode_request,
    encode_response,
    kind_of,
)
from lakemq.wire.consume import FetchIndexAck, FoundIndex, TopicFoundIndexes, TopicMessages
from lakemq.wire.dialect import Dialect, Form, header_qos, level_of_qos, qos_of_level, status_of
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import BOOLEAN_ACK, Header, read_header
from lakemq.wire.metadata import (
    ClusterBroker,
    ClusterTopic,
    ConsumerPolicy,
    FetchClusterAck,
    TopicType,
)
from lakemq.wire.produce import FetchProduceFeedback, ProduceMessagePrepare
from lakemq.wire.session import AddConnection, Heartbeat
from wire.strategies import DOCUMENTED, FORMS, INTS, LONGS, form_name, values_of

PROPERTY = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
VERSIONS = (0, 1, 2, 3, 4, 9, 127)
DIALECTS = (Dialect.DOCUMENTED, Dialect.JOYQUEUE)


def has(kind, form):
    return not (kind.is_documented_only and form.is_joyqueue)


REQUESTS = [
    pytest.param(kind, form, id=f"{kind.name}-{form_name(form)}") for kind in KINDS for form in FORMS if has(kind, form)
]
ACKS = [
    pytest.param(kind, form, id=f"{kind.name}_ACK-{form_name(form)}")
    for kind in KINDS
    for form in FORMS
    if kind.ack is not None and has(kind, form)
]


def forms_of(kind):
    return st.sampled_from([form for form in FORMS if has(kind, form)])


def name_of(kind):
    return kind.name


def through_the_wire(parts, data):
    """The frame as a decoder gives it, when the network cuts it where it likes."""
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4), label="cuts"))
    decoder = FrameDecoder(frame_bytes_max=1 << 20, chunk_bytes=8 << 10)
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        frames += decoder.feed(whole[start:end])
    assert [bytes(frame) for frame in frames] == [whole]
    assert decoder.held_bytes == 0
    return frames[0]


def joined(parts):
    return b"".join(parts)


# ---- round trips ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "form"), REQUESTS)
@given(data=st.data())
@PROPERTY
def test_a_request_comes_back_as_it_was_sent(kind, form, data):
    command = data.draw(values_of(kind.request, form), label="command")
    request_id, sent = data.draw(INTS, label="request id"), data.draw(LONGS, label="send time")
    qos_bits = data.draw(st.integers(0, 3), label="qos")
    parts = encode_request(command, form=form, request_id=request_id, send_time_ms=sent, qos_bits=qos_bits)
    frame = through_the_wire(parts, data)

    header, back = decode_request(frame, form.dialect)

    assert header == Header(kind.number, request_id, form.version, qos_bits, sent)
    assert type(back) is kind.request_class
    assert back == command
    again = encode_request(back, form=form, request_id=request_id, send_time_ms=sent, qos_bits=qos_bits)
    assert joined(again) == bytes(frame)


@pytest.mark.parametrize(("kind", "form"), ACKS)
@given(data=st.data())
@PROPERTY
def test_an_ack_comes_back_as_it_was_sent(kind, form, data):
    ack = data.draw(values_of(kind.ack, form), label="ack")
    request = Header(kind.number, data.draw(INTS, label="request id"), form.version, data.draw(st.integers(0, 3)))
    sent = data.draw(LONGS, label="send time")
    frame = through_the_wire(encode_response(ack, request, dialect=form.dialect, send_time_ms=sent), data)

    header, back = decode_response(frame, form.dialect)

    assert header == Header(-kind.number, request.request_id, form.version, request.qos_bits, sent, is_response=True)
    assert type(back) is kind.ack_class
    assert back == ack
    assert joined(encode_response(back, request, dialect=form.dialect, send_time_ms=sent)) == bytes(frame)


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
@given(data=st.data())
@PROPERTY
def test_a_peer_that_writes_minus_one_for_empty_is_understood(kind, data):
    form = data.draw(forms_of(kind))
    command = data.draw(values_of(kind.request, form))
    python_form = Form(form.dialect, form.version, null_length=-1)
    frame = joined(encode_request(command, form=python_form, request_id=1, send_time_ms=0))
    assert decode_request(frame, form.dialect)[1] == command


# FETCH_PRODUCE_FEEDBACK tells its forms apart by how much follows; a PREPARE in the documented dialect may leave
# out its time-out, so that what follows is taken for one.
TAIL_MATTERS = {"FETCH_PRODUCE_FEEDBACK", "PRODUCE_MESSAGE_PREPARE"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name not in TAIL_MATTERS], ids=name_of)
@given(data=st.data())
@PROPERTY
def test_bytes_after_the_last_known_field_of_a_request_are_ignored(kind, data):
    form = data.draw(forms_of(kind))
    command = data.draw(values_of(kind.request, form))
    frame = bytearray(joined(encode_request(command, form=form, request_id=1, send_time_ms=0)))
    frame += data.draw(st.binary(min_size=1, max_size=9))
    struct.pack_into(">i", frame, 0, len(frame))
    assert decode_request(frame, form.dialect)[1] == command


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.ack is not None], ids=name_of)
@given(data=st.data())
@PROPERTY
def test_bytes_after_the_last_known_field_of_an_ack_are_ignored(kind, data):
    form = data.draw(forms_of(kind))
    ack = data.draw(values_of(kind.ack, form))
    parts = encode_response(ack, Header(kind.number, version=form.version), dialect=form.dialect, send_time_ms=0)
    frame = bytearray(joined(parts)) + data.draw(st.binary(min_size=1, max_size=9))
    struct.pack_into(">i", frame, 0, len(frame))
    assert decode_response(frame, form.dialect)[1] == ack


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
@given(data=st.data())
@PROPERTY
def test_a_request_cut_short_is_undecodable_and_nothing_else(kind, data):
    form = data.draw(forms_of(kind))
    command = data.draw(values_of(kind.request, form))
    frame = joined(encode_request(command, form=form, request_id=1, send_time_ms=0))
    kept = data.draw(st.integers(23, len(frame)))
    cut = struct.pack(">i", kept) + frame[4:kept]
    try:
        _, back = decode_request(cut, form.dialect)
    except SerializationError:
        return
    # Where a cut still decodes, it is a field that may be left out, and what was decoded can be sent.
    assert back == command or kind.name in TAIL_MATTERS
    assert encode_request(back, form=form, request_id=1, send_time_ms=0)


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_the_smallest_request_and_ack_are_made_of_defaults(kind):
    for form in FORMS:
        if not has(kind, form):
            continue
        frame = joined(encode_request(kind.request_class(), form=form, request_id=1, send_time_ms=0))
        assert type(decode_request(frame, form.dialect)[1]) is kind.request_class
        if kind.ack_class is not None:
            parts = encode_response(
                kind.ack_class(), Header(kind.number, version=form.version), dialect=form.dialect, send_time_ms=0
            )
            assert decode_response(joined(parts), form.dialect)[1] == kind.ack_class()


# ---- the table -----------------------------------------------------------------------------------------------------


def test_the_catalogue_has_each_number_name_and_class_once():
    for column in ("number", "name", "request_class"):
        cells = [getattr(kind, column) for kind in KINDS]
        assert len(set(cells)) == len(cells), column
    acks = [kind.ack_class for kind in KINDS if kind.ack_class is not None]
    assert len(set(acks)) == len(acks)


def test_four_commands_are_answered_by_a_header_alone():
    assert {kind.number for kind in KINDS if kind.ack is None} == {2, 4, 6, 7}


@pytest.mark.parametrize("number", [0, 9, 11, 22, 36, 55, 70, 99, 100, 103, 127, -1, -5, -127, -128])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_number_outside_the_catalogue_is_unsupported(number, dialect):
    with pytest.raises(UnsupportedCommandError, match=f"type {number} "):
        kind_of(number, dialect)
    with pytest.raises(UnsupportedCommandError):
        decode_request(Header(number).pack(0), dialect)


def test_type_34_is_a_command_of_the_documented_dialect_only():
    assert kind_of(34, Dialect.DOCUMENTED).name == "FETCH_ACK_INDEX"
    with pytest.raises(UnsupportedCommandError):
        kind_of(34, Dialect.JOYQUEUE)
    frame = joined(
        encode_request(kind_of(34, Dialect.DOCUMENTED).request_class(), form=DOCUMENTED, request_id=1, send_time_ms=0)
    )
    assert decode_request(frame, Dialect.DOCUMENTED)[0].type == 34
    with pytest.raises(UnsupportedCommandError) as refused:
        decode_request(frame, Dialect.JOYQUEUE)
    assert status_of(refused.value, Dialect.JOYQUEUE) == 27


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_a_documented_error_is_a_header_with_the_negated_type(kind):
    for version in VERSIONS:
        request = Header(kind.number, 77, version, qos_bits=3, send_time_ms=1)
        frame = encode_error(TopicNotFoundError("no orders"), request, dialect=Dialect.DOCUMENTED, send_time_ms=5)
        header, start = read_header(frame)
        assert header == Header(-kind.number, 77, version, 3, 5, True, 189, "no orders")
        assert start == len(frame)
        assert decode_response(frame, Dialect.DOCUMENTED) == (header, None)


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_a_joyqueue_error_is_a_boolean_ack(kind):
    for version in VERSIONS:
        request = Header(kind.number, 77, version, qos_bits=3, send_time_ms=1)
        frame = encode_error(TopicNotFoundError("no orders"), request, dialect=Dialect.JOYQUEUE, send_time_ms=5)
        header, start = read_header(frame)
        assert header == Header(BOOLEAN_ACK, 77, version, 3, 5, True, 189, "no orders")
        assert start == len(frame)
        assert decode_response(frame, Dialect.JOYQUEUE) == (header, None)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.ack is None], ids=name_of)
@pytest.mark.parametrize("form", FORMS, ids=form_name)
def test_success_without_a_payload_is_a_header_alone(kind, form):
    request = Header(kind.number, 5, form.version, 1)
    (frame,) = encode_response(None, request, dialect=form.dialect, send_time_ms=9)
    header, ack = decode_response(frame, form.dialect)
    assert len(frame) == 26
    assert ack is None
    number = BOOLEAN_ACK if form.is_joyqueue else -kind.number
    assert header == Header(number, 5, form.version, 1, 9, is_response=True)


STATUSES = [
    (UnsupportedCommandError, Dialect.DOCUMENTED, 6),
    (UnsupportedCommandError, Dialect.JOYQUEUE, 27),
    (SerializationError, Dialect.DOCUMENTED, 107),
    (SerializationError, Dialect.JOYQUEUE, 28),
    (DecodeError, Dialect.DOCUMENTED, 28),
    (DecodeError, Dialect.JOYQUEUE, 28),
    (BadParameterError, Dialect.DOCUMENTED, 6),
    (BadParameterError, Dialect.JOYQUEUE, 6),
    (UnknownError, Dialect.DOCUMENTED, 4),
    (LakeMQError, Dialect.DOCUMENTED, 4),
    (LakeMQError, Dialect.JOYQUEUE, 4),
]


@pytest.mark.parametrize(("error", "dialect", "status"), STATUSES)
def test_each_dialect_has_its_number_for_what_it_cannot_read(error, dialect, status):
    assert status_of(error("why"), dialect) == status
    frame = encode_error(error("why"), Header(1, 1), dialect=dialect, send_time_ms=0)
    assert read_header(frame)[0].status == status


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_error_that_travels_reaches_the_other_side(error):
    for dialect in DIALECTS:
        header, _ = read_header(encode_error(error("detail"), Header(1, 1), dialect=dialect, send_time_ms=0))
        assert header.status == status_of(error("detail"), dialect)
        assert header.error == "detail"
        if error not in (UnsupportedCommandError, SerializationError):
            assert type(from_status(header.status, header.error)) is error


# What a request's type byte may be, the catalogue apart: the answer must exist all the same.
@pytest.mark.parametrize("number", [0, 9, 34, 127, -1, -127, -128])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_of_any_type_can_be_refused(number, dialect):
    frame = Header(number, 7).pack(0)
    header, _ = read_header(frame)
    answer = encode_error(UnsupportedCommandError("what?"), header, dialect=dialect, send_time_ms=0)
    refused, ack = decode_response(answer, dialect)
    assert (refused.request_id, refused.is_response, ack) == (7, True, None)


@given(st.text(max_size=50))
@settings(PROPERTY, max_examples=50)
def test_any_error_text_travels(text):
    frame = encode_error(TopicNotFoundError(text), Header(1, 1), dialect=Dialect.DOCUMENTED, send_time_ms=0)
    expected = (text or TopicNotFoundError.cause).encode("utf-8", "replace").decode()
    assert read_header(frame)[0].error == expected


@pytest.mark.parametrize("character", ["a", "é", "中", "😀"])
def test_a_long_error_text_is_cut_between_characters(character):
    text = character * 40_000
    frame = encode_error(TopicNotFoundError(text), Header(1, 1), dialect=Dialect.JOYQUEUE, send_time_ms=0)
    error = read_header(frame)[0].error
    assert text.startswith(error)
    assert 32767 - 3 <= len(error.encode()) <= 32767


def test_an_ack_may_carry_the_first_failure_of_its_topics():
    ack = kind_of(30, Dialect.DOCUMENTED).ack_class((TopicMessages("orders"),))
    parts = encode_response(
        ack, Header(30, 3), dialect=Dialect.DOCUMENTED, send_time_ms=0, error=TopicNotFoundError("orders")
    )
    header, back = decode_response(joined(parts), Dialect.DOCUMENTED)
    assert (header.status, header.error, back) == (189, "orders", ack)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_header_tells_a_response_from_a_request_whatever_the_type_says(dialect):
    with pytest.raises(UnsupportedCommandError, match="drop it"):
        decode_request(Header(7, 1, is_response=True).pack(0), dialect)
    header, _ = decode_response(Header(-8, 1).pack(8) + bytes(8), dialect)
    assert not header.is_response


# ---- versions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_in_the_version_of_the_request(dialect, version):
    frame = joined(encode_request(Heartbeat(), form=Form(dialect, version), request_id=1, send_time_ms=0))
    request, _ = decode_request(frame, dialect)
    (answer,) = encode_response(None, request, dialect=dialect, send_time_ms=0)
    assert read_header(answer)[0].version == version
    refused = encode_error(UnknownError(), request, dialect=dialect, send_time_ms=0)
    assert read_header(refused)[0].version == version
    health = encode_response(session.FetchHealthAck(1.5), request, dialect=dialect, send_time_ms=0)
    assert read_header(joined(health))[0].version == version


def cluster_bytes(dialect, version):
    ack = FetchClusterAck((ClusterTopic("t", params=(("k", "v"),)),), (ClusterBroker(1, "h", permission=2),))
    parts = encode_response(ack, Header(10, version=version), dialect=dialect, send_time_ms=0)
    _, start = read_header(joined(parts))
    return joined(parts)[start:]


def index_bytes(dialect, version):
    ack = FetchIndexAck((TopicFoundIndexes("t", (FoundIndex(1, 2, 0, 3, 4),)),))
    parts = encode_response(ack, Header(35, version=version), dialect=dialect, send_time_ms=0)
    _, start = read_header(joined(parts))
    return joined(parts)[start:]


# Since 2 brokers have two INTs more, since 3 indexes two LONGs, since 4 topics have params.
@pytest.mark.parametrize(
    ("version", "like"), [(0, 1), (1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (9, 4), (127, 4)], ids=lambda v: f"v{v}"
)
def test_version_0_counts_as_1_and_what_is_newer_as_the_newest(version, like):
    assert cluster_bytes(Dialect.JOYQUEUE, version) == cluster_bytes(Dialect.JOYQUEUE, like)
    assert index_bytes(Dialect.JOYQUEUE, version) == index_bytes(Dialect.JOYQUEUE, like)


def test_each_joyqueue_version_adds_its_fields():
    sizes = [len(cluster_bytes(Dialect.JOYQUEUE, version)) for version in (1, 2, 3, 4)]
    params = 2 + 3 + 3
    assert [size - sizes[0] for size in sizes] == [0, 8, 8, 8 + params]
    sizes = [len(index_bytes(Dialect.JOYQUEUE, version)) for version in (1, 2, 3, 4)]
    assert [size - sizes[0] for size in sizes] == [0, 0, 16, 16]


@pytest.mark.parametrize("version", [0, 1, 3, 4, 9])
def test_the_documented_layout_does_not_depend_on_the_version(version):
    assert cluster_bytes(Dialect.DOCUMENTED, version) == cluster_bytes(Dialect.DOCUMENTED, 2)
    assert index_bytes(Dialect.DOCUMENTED, version) == index_bytes(Dialect.DOCUMENTED, 2)


# ---- what a dialect cannot say -------------------------------------------------------------------------------------


def read_back(ack, number, form):
    parts = encode_response(ack, Header(number, version=form.version), dialect=form.dialect, send_time_ms=0)
    return decode_response(joined(parts), form.dialect)[1]


JOYQUEUE = Form(Dialect.JOYQUEUE, 4)


@pytest.mark.parametrize("kind", [TopicType.NONE, TopicType.ORDERED])
def test_joyqueue_is_told_of_normal_and_broadcast_topics_only(kind):
    topic = ClusterTopic("t", consumer_policy=ConsumerPolicy(), type=kind)
    (back,) = read_back(FetchClusterAck((topic,)), 10, JOYQUEUE).topics
    assert back.type == TopicType.NORMAL
    assert back.consumer_policy.is_sequential == (kind is TopicType.ORDERED)


def test_an_ordered_topic_without_a_consumer_is_only_normal_to_joyqueue():
    (back,) = read_back(FetchClusterAck((ClusterTopic("t", type=TopicType.ORDERED),)), 10, JOYQUEUE).topics
    assert (back.type, back.consumer_policy) == (TopicType.NORMAL, None)


@pytest.mark.parametrize(
    ("is_concurrent", "size", "seen"), [(True, 5, (True, 5)), (False, 5, (False, 1)), (True, 1, (False, 1))]
)
def test_joyqueue_sees_parallel_consumption_as_a_degree(is_concurrent, size, seen):
    policy = ConsumerPolicy(is_concurrent=is_concurrent, concurrent_prefetch_size=size)
    (topic,) = read_back(FetchClusterAck((ClusterTopic("t", consumer_policy=policy),)), 10, JOYQUEUE).topics
    assert (topic.consumer_policy.is_concurrent, topic.consumer_policy.concurrent_prefetch_size) == seen


def feedback(tail):
    return Header(54, 1).pack(len(tail) + 9) + b"\x00\x02ap\x00\x02to\x01" + tail


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("tail", "count", "wait"),
    [
        (struct.pack(">i", 3000), 10, 3000),
        (struct.pack(">ii", 7, 3000), 7, 3000),
        (struct.pack(">iq", 7, 1 << 40), 7, 1 << 40),
    ],
    ids=["wait", "count-and-wait", "count-and-long-wait"],
)
def test_a_feedback_request_is_told_by_its_length(dialect, tail, count, wait):
    _, command = decode_request(feedback(tail), dialect)
    assert command == FetchProduceFeedback("ap", "to", 1, count, wait)


@pytest.mark.parametrize("tail", [b"", b"\x00", bytes(3)])
def test_a_feedback_request_without_a_time_out_is_undecodable(tail):
    with pytest.raises(SerializationError, match="time-out"):
        decode_request(feedback(tail), Dialect.JOYQUEUE)


def test_a_wait_that_joyqueue_cannot_say_is_refused():
    with pytest.raises(BadParameterError):
        encode_request(
            FetchProduceFeedback("a", "t", long_poll_timeout_ms=1 << 31), form=JOYQUEUE, request_id=1, send_time_ms=0
        )


@pytest.mark.parametrize("form", FORMS, ids=form_name)
def test_a_prepare_may_come_without_a_time_out(form):
    frame = joined(encode_request(ProduceMessagePrepare("t", "a", 1, "x", 5), form=form, request_id=1, send_time_ms=0))
    short = struct.pack(">i", len(frame) - 4) + frame[4:-4]
    assert decode_request(short, form.dialect)[1] == ProduceMessagePrepare("t", "a", 1, "x", 0)


# ---- QoS -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "qos"), [(0, Qos.FLUSH), (1, Qos.RECEIVE), (2, Qos.NO), (3, Qos.WRITE)], ids=lambda value: str(value)
)
def test_documented_levels_are_the_descriptions(level, qos):
    assert qos_of_level(level, Dialect.DOCUMENTED) is qos
    assert level_of_qos(qos, Dialect.DOCUMENTED) == level
    assert header_qos(level, Dialect.DOCUMENTED) is qos


@pytest.mark.parametrize("level", [-128, -1, 4, 5, 127])
def test_a_level_nobody_documented_is_refused(level):
    with pytest.raises(BadParameterError, match=f"qosLevel {level} "):
        qos_of_level(level, Dialect.DOCUMENTED)


@pytest.mark.parametrize(
    ("level", "qos"),
    [(0, Qos.NO), (1, Qos.RECEIVE), (2, Qos.FLUSH), (3, Qos.WRITE), (4, Qos.FLUSH)],
    ids=lambda value: str(value),
)
def test_joyqueue_levels_are_those_of_its_clients(level, qos):
    assert qos_of_level(level, Dialect.JOYQUEUE) is qos


@pytest.mark.parametrize("level", [-128, -1, 5, 127])
def test_an_unknown_joyqueue_level_means_replication(level):
    assert qos_of_level(level, Dialect.JOYQUEUE) is qos_of_level(3, Dialect.JOYQUEUE)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("qos", Qos)
def test_a_qos_survives_its_level(dialect, qos):
    assert qos_of_level(level_of_qos(qos, dialect), dialect) is qos


@pytest.mark.parametrize(("bits", "qos"), [(0, Qos.NO), (1, Qos.RECEIVE), (2, Qos.RECEIVE), (3, Qos.RECEIVE)])
def test_joyqueue_header_bits_only_say_whether_a_reply_is_wanted(bits, qos):
    assert header_qos(bits, Dialect.JOYQUEUE) is qos


def test_the_stronger_qos_wins():
    assert sorted(Qos, key=lambda qos: qos.strength) == [Qos.NO, Qos.RECEIVE, Qos.WRITE, Qos.FLUSH]


# ---- which dialect -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
@settings(PROPERTY, max_examples=100)
def test_the_dialect_is_told_by_the_first_request(dialect, data):
    form = data.draw(st.sampled_from([form for form in FORMS if form.dialect is dialect]))
    command = data.draw(values_of(session.ADD_CONNECTION, form))
    if form.is_joyqueue:
        language = data.draw(st.integers(0, session.LANGUAGE_OTHER))
        command = AddConnection(**{**as_dict(command), "language": language})
    frame = joined(encode_request(command, form=form, request_id=1, send_time_ms=0))
    header, start = read_header(frame)
    assert session.recognise(memoryview(frame)[start:], header.version) is form.dialect


def as_dict(command):
    return {name: getattr(command, name) for name in session.ADD_CONNECTION.types}


@pytest.mark.parametrize("form", FORMS, ids=form_name)
def test_a_first_request_with_a_byte_too_many_is_of_neither_dialect(form):
    frame = joined(encode_request(AddConnection(app="shop", token="t"), form=form, request_id=1, send_time_ms=0))
    for payload in (frame[23:] + b"\x00", frame[23:-1]):
        with pytest.raises(SerializationError, match="neither"):
            session.recognise(payload, form.version)


@pytest.mark.parametrize("language", [9, 127, -1, -128])
def test_a_language_nobody_numbered_is_not_a_joyqueue_client(language):
    command = AddConnection(app="shop", token="token", language=language)
    frame = joined(encode_request(command, form=JOYQUEUE, request_id=1, send_time_ms=0))
    with pytest.raises(SerializationError):
        session.recognise(frame[23:], 4)


def test_before_the_first_request_only_version_2_is_presumed_documented():
    presumed = {version: session.presumed(version) for version in (0, 1, 2, 3, 4, 9)}
    assert [version for version, dialect in presumed.items() if dialect is Dialect.DOCUMENTED] == [2]

"""How messages are laid out: the same bytes as the codec's, however they travel."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.client.delivery import open_messages
from lakemq.client.lease import Lease
from lakemq.client.outgoing import Message, attributes_bytes, body_bytes, key_bytes, tags_text
from lakemq.client.parcel import Packing, Parcel
from lakemq.client.produce_frame import produce_frame, read_produce_ack
from lakemq.compression import Compression
from lakemq.envelope import pack, unpack, unpack_all
from lakemq.errors import BadParameterError
from lakemq.message import BatchItem, BatchMessage
from lakemq.message import Message as Stored
from lakemq.record import scan, stamp
from lakemq.wire.commands import decode_request, encode_request, encode_response
from lakemq.wire.consume import CommitAck, MessageAck, PartitionAcks, TopicAcks
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.header import Header
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, ProduceMessageAck, ProduceResult, TopicProduce, TopicProduceResults

NOW_MS = 1_700_000_000_000
PLAIN = Packing("shop", Compression.NONE, 100)

keys = st.text(max_size=20)
bodies = st.binary(max_size=300)
tags = st.sampled_from(["", "paid", "new,paid"])
headers = st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=2)


def messages_of(parcel):
    return b"".join(parcel.parts)


@settings(deadline=None)
@given(bodies, keys, headers, st.integers(-128, 127), st.booleans(), st.sampled_from(list(Compression)))
def test_a_single_message_has_the_bytes_of_the_codec(body, key, attributes, priority, is_ordered, compression):
    if compression is Compression.LZ4 or compression is Compression.ZIP:
        compression = Compression.NONE  # another level than the codec's; not a kind that clients write
    packing = Packing("shop", compression, 0)
    parts = packing.message(
        body, key_bytes(key), attributes_bytes(attributes), NOW_MS, priority=priority, is_ordered=is_ordered
    )
    carried, is_compressed = packing.carried(body)
    expected = Stored(
        body=body,
        business_id=key,
        attributes=attributes,
        priority=priority,
        app="shop",
        compression=compression if is_compressed else Compression.NONE,
        is_ordered=is_ordered,
        send_time_ms=NOW_MS,
    )
    assert b"".join(parts) == pack(expected)
    assert len(carried) <= len(body)


@settings(deadline=None)
@given(st.lists(st.tuples(bodies, keys, headers), min_size=2, max_size=20), st.sampled_from(["", "paid"]))
def test_messages_that_share_a_carrier_have_the_bytes_of_the_codec(items, tag):
    parcel = Parcel("orders", 0, "flush", PLAIN)
    for body, key, attributes in items:
        parcel.add(body, key_bytes(key), tag, attributes_bytes(attributes), NOW_MS)
    parcel.seal(NOW_MS)
    expected = BatchMessage(
        items=tuple(BatchItem(body, key, attributes) for body, key, attributes in items),
        attributes={"TAGS": tag} if tag else {},
        app="shop",
        send_time_ms=NOW_MS,
    )
    assert messages_of(parcel) == pack(expected)
    assert parcel.counts == [len(items)]


@settings(deadline=None)
@given(st.lists(st.tuples(bodies, keys, tags, st.booleans()), min_size=1, max_size=30))
def test_whatever_is_put_in_comes_out_in_order(items):
    parcel = Parcel("orders", 3, "flush", Packing("shop", Compression.LZ4, 100))
    for place, (body, key, tag, is_alone) in enumerate(items):
        if is_alone:
            attributes = attributes_bytes(None, tag)
            assert parcel.add_alone(body, key_bytes(key), attributes, NOW_MS, 1, f"id-{place}") == place
        else:
            assert parcel.add(body, key_bytes(key), tag, b"", NOW_MS) == place
    parcel.seal(NOW_MS)
    parcel.address_to(3)
    data = bytearray(messages_of(parcel))
    found = scan(data, 0, len(data), len(parcel.heads))
    assert (found.partition, found.index_count) == (3, len(items))
    stamp(data, 0, len(parcel.heads), 3, 100, 1, NOW_MS + 5)
    got = [
        (one.body, one.business_id, one.index)
        for message in unpack_all(data)
        for one in (message.messages() if isinstance(message, BatchMessage) else [message])
    ]
    assert got == [(body, key, 100 + n) for n, (body, key, _, _) in enumerate(items)]
    deliveries = received(data, len(parcel.heads))
    assert [(one.body, one.key or "", one.offset) for one in deliveries] == got
    assert [",".join(one.tags) for one in deliveries] == [tag for _, _, tag, _ in items]
    assert [one.stored_at - one.sent_at for one in deliveries] == [5] * len(items)
    parcel.placing = [(3, message.index) for message in unpack_all(data)]
    assert [parcel.where(place) for place in range(len(items))] == [(3, 100 + n) for n in range(len(items))]


def received(data, count):
    carried = open_messages("orders", MessageBlock(count, (memoryview(data),)))
    return Lease(None, carried, 0, 1000, lambda lease: None).take(1 << 20)


def test_equal_tags_share_and_others_do_not():
    parcel = Parcel("orders", 0, "flush", PLAIN)
    for tag in ("a", "a", "b", "b", "b", "", "a"):
        parcel.add(b"x", b"", tag, b"", NOW_MS)
    parcel.seal(NOW_MS)
    assert parcel.counts == [2, 3, 1, 1]
    stored = list(unpack_all(messages_of(parcel)))
    assert [one.attributes.get("TAGS") for one in stored] == ["a", "b", None, "a"]
    assert not isinstance(stored[2], BatchMessage)


def test_a_carrier_is_compressed_only_if_that_makes_it_smaller():
    packing = Packing("shop", Compression.ZLIB, 100)
    for body, is_smaller in ((b"a" * 80, True), (bytes(range(60)), False)):
        parcel = Parcel("orders", 0, "flush", packing)
        for _ in range(2 if is_smaller else 1):
            parcel.add(body, b"", "", b"", NOW_MS)
        parcel.seal(NOW_MS)
        message = unpack(messages_of(parcel))
        assert (message.compression is Compression.ZLIB) == is_smaller


def test_ids_are_given_where_they_are_needed():
    numbers = iter(range(100))
    packing = Packing("shop", Compression.NONE, 100, lambda: f"id-{next(numbers)}")
    parcel = Parcel("orders", 0, "flush", packing)
    parcel.add(b"a", b"", "", b"", NOW_MS)
    parcel.add(b"b", b"", "", b"", NOW_MS)
    parcel.add_alone(b"c", b"", b"", NOW_MS, 0, "mine")
    parcel.add(b"d", b"", "t", b"", NOW_MS)
    parcel.seal(NOW_MS)
    assert [one.attributes.get("UNIQ_ID") for one in unpack_all(messages_of(parcel))] == ["id-0", "mine", "id-1"]
    assert parcel.has_ids
    assert parcel.uniq_ids == {2: "mine", 3: "id-1"}


def test_without_an_id_on_every_message_a_second_copy_is_possible():
    parcel = Parcel("orders", 0, "flush", PLAIN)
    parcel.add_alone(b"c", b"", b"", NOW_MS, 0, "mine")
    assert parcel.has_ids
    parcel.add(b"a", b"", "", b"", NOW_MS)
    parcel.seal(NOW_MS)
    assert not parcel.has_ids


def test_too_large_is_refused_and_leaves_the_parcel_as_it_was():
    parcel = Parcel("orders", 0, "flush", PLAIN)
    parcel.add(b"a", b"", "", b"", NOW_MS)
    with pytest.raises(BadParameterError, match="bytes as carried"):
        parcel.add_alone(bytes(5 << 20), b"", b"", NOW_MS)
    parcel.seal(NOW_MS)
    assert parcel.counts == [1]
    assert parcel.count == 1


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(1, 1 << 31 - 1))
def test_a_produce_request_has_the_bytes_of_the_codec(count, level, request_id):
    request_id &= 0x7FFFFFFF
    parts = [pack(Stored(body=b"%d" % n, app="shop")) for n in range(count)]
    size = sum(map(len, parts))
    made = b"".join(produce_frame("orders", "shop.g", 5000, level, count, parts, size, request_id, NOW_MS))
    command = ProduceMessage((TopicProduce("orders", "", 5000, level, MessageBlock(count, tuple(parts))),), "shop.g")
    expected = encode_request(command, form=Form(), request_id=request_id, send_time_ms=NOW_MS, qos_bits=level)
    assert made == b"".join(expected)


@settings(deadline=None)
@given(st.integers(0, 255), st.lists(st.tuples(st.integers(0, 99), st.integers(-1, 1 << 60)), max_size=5))
def test_a_produce_answer_is_read_as_by_the_codec(code, places):
    results = tuple(ProduceResult(partition, index, 7) for partition, index in places)
    ack = ProduceMessageAck((TopicProduceResults("orders", code, results),))
    frame = memoryview(b"".join(encode_response(ack, Header(50, 1), dialect=Dialect.DOCUMENTED, send_time_ms=0)))
    assert read_produce_ack(frame, 26) == (code, places)
    for cut in range(26, len(frame)):
        assert read_produce_ack(frame[:cut], 26) is None or not places


def test_an_answer_about_two_topics_is_left_to_the_codec():
    ack = ProduceMessageAck((TopicProduceResults("a"), TopicProduceResults("b")))
    frame = memoryview(b"".join(encode_response(ack, Header(50, 1), dialect=Dialect.DOCUMENTED, send_time_ms=0)))
    assert read_produce_ack(frame, 26) is None


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 2, 3]), min_size=1, max_size=30), st.integers(0, 1 << 40))
def test_acks_have_the_bytes_of_the_codec_in_runs_of_one_kind(kinds, first):
    data = bytearray(pack(BatchMessage(items=tuple(BatchItem(b"x") for _ in kinds))))
    stamp(data, 0, 1, 5, first, 1, 0)
    lease = Lease(None, open_messages("orders", MessageBlock(1, (data,))), 0, 1000, lambda lease: None)
    for place, kind in enumerate(kinds):
        lease.settle(place, kind)
    sent = []
    while lease.acked < len(kinds):
        frame, end = lease.ack_frame(lease.settled_to, "orders", "shop.g")
        _, command = decode_request(bytearray(b"".join(frame(9, NOW_MS))), Dialect.DOCUMENTED)
        (acks,) = command.topics[0].partitions
        expected = CommitAck((TopicAcks("orders", (PartitionAcks(5, acks.acks),)),), "shop.g")
        assert command == expected
        assert b"".join(frame(9, NOW_MS)) == b"".join(
            encode_request(expected, form=Form(), request_id=9, send_time_ms=NOW_MS)
        )
        assert len({ack.type for ack in acks.acks}) == 1
        sent += acks.acks
        lease.acked = end
    assert sent == [MessageAck(5, first + n, kind) for n, kind in enumerate(kinds)]


def test_bodies_are_bytes_text_or_json():
    assert body_bytes(b"x") == b"x"
    assert body_bytes(bytearray(b"x")) == b"x"
    assert body_bytes(memoryview(b"xyz")[::2]) == b"xz"
    assert body_bytes("é") == "é".encode()
    assert body_bytes({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()
    assert tags_text(["a", "b"]) == "a,b"
    assert body_bytes(None) == b"", "a tombstone, which its attributes tell"
    for wrong in (1, object(), {"a": object()}, {"a": float("nan")}, "\ud800"):
        with pytest.raises(BadParameterError):
            body_bytes(wrong)
    assert Message(b"x").key is None

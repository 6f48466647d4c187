"""Leases: what is settled in any order is acked as a prefix; a model against the simplest thing that could be right."""

import contextlib
import gc
import json
import struct
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lakemq.client.delivery import Delivery, open_messages
from lakemq.client.lease import FORGONE, Lease, Order
from lakemq.compression import Compression
from lakemq.envelope import pack
from lakemq.errors import LakeMQError, SerializationError
from lakemq.message import AckType, BatchItem, BatchMessage, Message
from lakemq.record import stamp
from lakemq.wire.messages import MessageBlock

COUNT = 12


def lease_of(*messages, first=100, on_done=lambda lease: None):
    data = bytearray(b"".join(pack(message) for message in messages))
    stamp(data, 0, len(messages), 2, first, 1, 5)
    return Lease(None, open_messages("orders", MessageBlock(len(messages), (data,))), 0, 1000, on_done)


def plain(count):
    return [Message(body=b"%d" % n) for n in range(count)]


class LeaseModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.done = 0
        self.lease = lease_of(*plain(COUNT), on_done=self._done)
        self.deliveries = self.lease.take(COUNT)
        self.marks = [None] * COUNT

    def _done(self, lease):
        assert None not in self.marks_with_last, "told too early"
        self.done += 1

    @rule(place=st.integers(0, COUNT - 1), how=st.sampled_from([AckType.SUCCESS, AckType.EXCEPTION]))
    def settle(self, place, how):
        self.marks_with_last = list(self.marks)
        if self.marks[place] is None:
            self.marks_with_last[place] = how
        self.deliveries[place].ack() if how is AckType.SUCCESS else self.deliveries[place].retry()
        self.marks = self.marks_with_last

    @rule(start=st.integers(0, COUNT - 1), size=st.integers(1, 4))
    def settle_run(self, start, size):
        end = min(start + size, COUNT)
        self.marks_with_last = [
            AckType.SUCCESS if mark is None and start <= place < end else mark for place, mark in enumerate(self.marks)
        ]
        self.lease.settle_run(start, end)
        self.marks = self.marks_with_last

    @rule()
    def send(self):
        end = self.lease.settled_to
        if end > self.lease.acked:
            _, self.lease.acked = self.lease.ack_frame(end, "orders", "shop")

    @invariant()
    def the_prefix_is_what_is_settled_without_a_gap(self):
        prefix = next((place for place, mark in enumerate(self.marks) if mark is None), COUNT)
        assert self.lease.settled_to == prefix
        assert self.lease.is_done == (prefix == COUNT)
        assert self.lease.acked <= prefix
        assert [one.is_settled for one in self.deliveries] == [mark is not None for mark in self.marks]

    @invariant()
    def the_end_is_told(self):
        assert (self.done > 0) == (None not in self.marks)


TestLeaseModel = LeaseModel.TestCase
TestLeaseModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.integers(1, 7), max_size=20))
def test_messages_are_handed_out_once_in_order(sizes, counts):
    carriers = [
        BatchMessage(items=tuple(BatchItem(b"x") for _ in range(size))) if size > 1 else Message(body=b"x")
        for size in sizes
    ]
    lease = lease_of(*carriers)
    got = [one.offset for count in [*counts, 100] for one in lease.take(count)]
    assert got == list(range(100, 100 + sum(sizes)))
    assert lease.is_used_up


def test_gaps_between_messages_keep_their_indexes():
    first = bytearray(pack(BatchMessage(items=(BatchItem(b"a"), BatchItem(b"b")))))
    second = bytearray(pack(Message(body=b"c")))
    stamp(first, 0, 1, 2, 10, 1, 0)
    stamp(second, 0, 1, 2, 40, 1, 0)
    lease = Lease(None, open_messages("t", MessageBlock(2, (first, second))), 0, 1000, lambda lease: None)
    assert [one.offset for one in lease.take(3)] == [10, 11, 40]
    lease.settle_run(0, 3)
    frame, end = lease.ack_frame(3, "t", "a")
    assert end == 3
    payload = b"".join(frame(1, 0))
    assert struct.pack(">hqb", 2, 40, 0) in payload


def broken(change, **fields):
    message = BatchMessage(items=(BatchItem(b"one"), BatchItem(b"two")), **fields)
    data = bytearray(pack(message))
    struct.pack_into(">q", data, 33, 0)  # no CRC: the check of the layout is what is tested
    change(data)
    return open_messages("t", MessageBlock(1, (data,)))


@pytest.mark.parametrize(
    ("offset", "value"),
    [(47, 5000), (51, 77), (53, 3), (53, -1), (53, 1 << 30)],
    ids=["whole", "count", "item too short", "item negative", "item too long"],
)
def test_a_batch_that_does_not_add_up_is_damage(offset, value):
    layout = ">h" if offset == 51 else ">i"
    (carried,) = broken(lambda data: struct.pack_into(layout, data, offset, value))
    assert isinstance(carried.damage, SerializationError)
    assert len(carried.starts) == 2


def test_parts_that_do_not_fit_their_message_are_told_when_looked_at():
    (carried,) = broken(lambda data: struct.pack_into(">i", data, 60, 4000))
    first, second = Lease(None, [carried], 0, 1000, lambda lease: None).take(2)
    with pytest.raises(SerializationError):
        _ = first.body
    with pytest.raises(SerializationError):
        _ = first.key
    assert second.body == b"two"


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=8), st.integers(0, 200))
def test_no_bytes_make_anything_but_a_delivery_or_a_lakemq_error(noise, at):
    data = bytearray(pack(BatchMessage(items=(BatchItem(b"one", "k", {"a": "b"}), BatchItem(b"two")))))
    struct.pack_into(">q", data, 33, 0)
    at = 47 + at % max(len(data) - 60 - len(noise), 1)
    data[at : at + len(noise)] = noise
    (carried,) = open_messages("t", MessageBlock(1, (data,)))
    for delivery in Lease(None, [carried], 0, 1000, lambda lease: None).take(1 << 20):
        for look in ("body", "key", "tags", "headers", "message_id"):
            with contextlib.suppress(LakeMQError):
                getattr(delivery, look)


def test_a_delivery_of_a_reader_has_nothing_to_settle():
    (carried,) = open_messages("t", MessageBlock(1, (pack(Message(body=json.dumps({"a": 1}).encode())),)))
    delivery = Delivery(carried, -1, 7, None, 0)
    delivery.ack()
    delivery.retry()
    assert delivery.is_settled
    assert delivery.json() == {"a": 1}
    with pytest.raises(SerializationError):
        Delivery(open_messages("t", MessageBlock(1, (pack(Message(body=b"{")),)))[0], -1, 7, None, 0).json()


def test_the_number_of_a_delivery_is_what_the_broker_says():
    message = Message(body=b"x", attributes={"LAKEMQ_ATTEMPT": "3", "mine": "1"}, compression=Compression.NONE)
    (delivery,) = lease_of(message).take(1)
    assert delivery.attempt == 3
    assert delivery.headers == {"mine": "1"}


def test_what_was_received_is_gone_with_its_last_delivery():
    lease = lease_of(*plain(50))
    carried = weakref.ref(lease)
    deliveries = lease.take(50)
    del lease
    gc.disable()  # no cycle may be needed to be found
    try:
        last = deliveries.pop()
        deliveries.clear()
        assert carried() is not None
        del last
        assert carried() is None
    finally:
        gc.enable()


@settings(deadline=None)
@given(st.integers(0, COUNT), st.integers(0, COUNT))
def test_what_is_given_back_is_handed_out_again(first, back):
    lease = lease_of(BatchMessage(items=tuple(BatchItem(b"x") for _ in range(COUNT - 5))), *plain(5))
    lease.take(first)
    lease.taken = min(back, first)
    assert [one.offset for one in lease.take(COUNT)] == list(range(100 + min(back, first), 100 + COUNT))


def test_I10_what_was_acked_behind_a_failure_before_it_is_not_sent():
    lease = lease_of(*plain(5))
    lease.order = Order.STRICT
    deliveries = lease.take(5)
    deliveries[3].ack()
    deliveries[0].ack()
    deliveries[1].retry()
    assert [one.is_lost for one in deliveries] == [False, False, True, True, True]
    deliveries[2].ack()
    assert [lease.marks[place] for place in range(5)] == [0, 2, FORGONE, FORGONE, FORGONE]
    lease.passed(2)
    assert lease.acked == 5, "there is nothing left to say"

"""Remembered ids: bounded, oldest out first, and the same after a snapshot."""

from hypothesis import given
from hypothesis import strategies as st

from lakemq.delivery.uniq import Place, UniqIds, ids_of
from lakemq.envelope import pack
from lakemq.message import BatchItem, BatchMessage, Message


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(1, 6))
def test_the_last_so_many_are_remembered(numbers, count_max):
    ids = UniqIds(count_max)
    order = []
    for place, number in enumerate(numbers):
        key = (1, "shop", str(number))
        known = key in order
        ids.add(key, Place(0, place, 7))
        if not known:
            order.append(key)
        order = order[-count_max:]
    for number in range(13):
        key = (1, "shop", str(number))
        assert (ids.find(key) is not None) is (key in order)
    twin = UniqIds(count_max)
    twin.restore(ids.pack())
    assert twin.pack() == ids.pack()
    for key in order:
        found, copy = ids.find(key), twin.find(key)
        assert (copy.partition, copy.first_index, copy.end_position) == (found.partition, found.first_index, 0)


def test_the_ids_of_stored_messages_are_found_whatever_stands_between():
    messages = b"".join(
        pack(message)
        for message in (
            Message(body=b"UNIQ_ID=no", index=0, partition=2),
            Message(attributes={"UNIQ_ID": "é\n="}, app="shop", index=1, partition=2),
            Message(attributes={"KEYS": "UNIQ_ID"}, index=2, partition=2),
            BatchMessage(items=(BatchItem(b"a"), BatchItem(b"b")), attributes={"UNIQ_ID": "b"}, index=3, partition=2),
            Message(attributes={"UNIQ_ID": ""}, index=5, partition=2),
        )
    )
    assert ids_of(messages) == [("shop", "é\n=", 2, 1), ("", "b", 2, 3)]


def test_what_is_discarded_is_forgotten():
    ids = UniqIds(5)
    ids.add((1, "a", "x"), Place(0, 0, 0))
    ids.discard((1, "a", "x"))
    ids.discard((1, "a", "never"))
    assert ids.find((1, "a", "x")) is None
    assert ids.pack() == b""

"""Remembered ids: bounded by count and age, oldest out first, and the same after a snapshot."""

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
        ids.add(key, Place(0, place, 7))
        order = [*(one for one in order if one != key), key][-count_max:]
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


def test_a_message_that_names_no_app_has_the_id_of_its_sender():
    messages = pack(Message(attributes={"UNIQ_ID": "x"}, index=4)) + pack(
        Message(attributes={"UNIQ_ID": "x"}, index=5, app="own")
    )
    assert [(app, index) for app, _, _, index in ids_of(messages, "shop")] == [("shop", 4), ("own", 5)]
    ids = UniqIds(5)
    ids.apply(1, messages, 99, 1000, "shop")
    assert ids.find((1, "shop", "x")).first_index == 4
    assert ids.find((1, "other", "x")) is None


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 60)), max_size=40))
def test_what_is_too_old_is_not_found_and_not_kept(steps):
    ids, twin, stored_at, now_ms = UniqIds(100, age_max_ms=100), UniqIds(100, age_max_ms=100), {}, 1000
    for number, later_ms in steps:
        now_ms += later_ms
        key = (1, "shop", str(number))
        is_known = key in stored_at and now_ms - stored_at[key] <= 100
        assert (ids.find(key, now_ms) is not None) is is_known
        if not is_known:  # as a broker does: stored, and remembered
            stored_at[key] = now_ms
            for one in (ids, twin):
                one.add(key, Place(0, 0, 0, now_ms))
    newest_ms = max(stored_at.values(), default=0)
    assert len(ids) == sum(newest_ms - stored_ms <= 100 for stored_ms in stored_at.values())
    assert ids.pack() == twin.pack()  # asking changes nothing: a replay comes to the same


def test_a_snapshot_from_before_there_were_times_is_read():
    ids = UniqIds(5)
    ids.restore(b'[[1,"shop","x",2,7]]')
    assert ids.find((1, "shop", "x"), 10**13) == Place(2, 7, 0)


def test_what_is_discarded_is_forgotten():
    ids = UniqIds(5)
    ids.add((1, "a", "x"), Place(0, 0, 0))
    ids.discard((1, "a", "x"))
    ids.discard((1, "a", "never"))
    assert ids.find((1, "a", "x")) is None
    assert ids.pack() == b""

"""Which messages are delivered: by filter, by EXPIRE, up to a key that is busy; walked in place."""

from hypothesis import given
from hypothesis import strategies as st

from lakemq.delivery.filters import parse_filter
from lakemq.delivery.loans import ANY_KEY
from lakemq.delivery.selection import is_expired, select, until_conflict
from lakemq.envelope import pack
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.record import scan, stamp

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["", "red", "blue"]),  # tag
        st.sampled_from([0, 50, 100, 150]),  # EXPIRE, 0 for none
        st.sampled_from(["", "k", "l"]),  # key
        st.integers(1, 3),  # a batch of so many; 1 for a message
    ),
    min_size=1,
    max_size=8,
)


def stored(described, first_index=10):
    """The bytes, and of each carrier its first and next index."""
    pieces = []
    for tag, expire_ms, key, count in described:
        attributes = ({"TAGS": tag} if tag else {}) | ({"EXPIRE": str(expire_ms)} if expire_ms else {})
        common = {"attributes": attributes, "business_id": key, "partition": 0}
        items = tuple(BatchItem(body=b"%d" % nth) for nth in range(count))
        pieces.append(pack(BatchMessage(items=items, **common) if count > 1 else Message(body=b"x", **common)))
    data = bytearray(b"".join(pieces))
    found = scan(data, 0, len(data), len(described))
    stamp(data, 0, len(described), 0, first_index, 1, 5)
    assert found.index_count == sum(count for *_, count in described)
    ranges, at = [], first_index
    for *_, count in described:
        ranges.append((at, at + count))
        at += count
    return bytes(data), ranges


def indexes(runs):
    return {index for first, after in runs for index in range(first, after)}


@given(MESSAGES, st.sampled_from(["", "red", "red || blue", "TAGS IS NULL"]))
def test_each_is_delivered_left_out_or_expired(described, text):
    data, ranges = stored(described)
    chosen = select(data, len(described), parse_filter(text), now_ms=100, stored_ms=50)
    wanted = {
        "": lambda tag: True,
        "red": lambda tag: tag == "red",
        "red || blue": lambda tag: tag in ("red", "blue"),
        "TAGS IS NULL": lambda tag: not tag,
    }[text]
    out = indexes(one for (tag, *_), one in zip(described, ranges, strict=True) if not wanted(tag))
    old = indexes(one for (_, ms, *_), one in zip(described, ranges, strict=True) if 0 < ms <= 100) - out
    assert indexes(chosen.left_out) == out
    assert indexes(chosen.expired) == old
    assert indexes((one.first_index, one.next_index) for one in chosen.picked) == indexes(ranges) - out - old
    for one in chosen.picked:
        piece = data[one.start : one.stop]
        assert scan(bytearray(piece), 0, len(piece), one.message_count).end == len(piece)


@given(MESSAGES, st.sets(st.sampled_from([b"", b"k", b"l", ANY_KEY])))
def test_those_before_the_first_whose_key_is_busy(described, busy):
    data, ranges = stored(described)
    picked, keyed = until_conflict(data, len(described), busy)
    keys = [ANY_KEY if one[3] > 1 else one[2].encode() for one in described]
    conflicts = [key in busy or ANY_KEY in busy or (key is ANY_KEY and bool(busy)) for key in keys]
    count = conflicts.index(True) if True in conflicts else len(described)
    assert keyed == [(*run, key) for run, key in zip(ranges[:count], keys[:count], strict=True)]
    if count:
        assert (picked.first_index, picked.next_index) == (ranges[0][0], ranges[count - 1][1])
        assert picked.message_count == count
    else:
        assert picked is None


def test_what_expires_when():
    assert not is_expired(b"EXPIRE=101", 100, 50)
    assert is_expired(b"EXPIRE=100", 100, 50)
    assert is_expired(b"a=b\nEXPIRE=7", 100, 50)
    assert not is_expired(b"EXPIRE=soon", 100, 50)
    assert not is_expired(b"EXPIRE=", 100, 50)
    assert not is_expired(b"EXPIRE=99999999999999999999", 1 << 62, 50)
    assert not is_expired(b"OTHER=1", 100, 50)


def test_a_span_is_counted_from_when_it_was_stored():
    assert not is_expired(b"EXPIRE=+51", 100, 50)
    assert is_expired(b"EXPIRE=+50", 100, 50)
    assert is_expired(b"EXPIRE=+0", 100, 50)
    assert not is_expired(b"EXPIRE=+", 100, 50)
    assert not is_expired(b"EXPIRE=++1", 100, 50)
    assert not is_expired(b"EXPIRE=-1", 100, 50)

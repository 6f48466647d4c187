"""Entries of a SETTLE record as bytes and back."""

from hypothesis import given
from hypothesis import strategies as st

from lakemq.delivery.settlement import (
    Acked,
    AckedRuns,
    Buried,
    DeadLetter,
    Edited,
    LeaseEnded,
    Moved,
    Retried,
    Retry,
    Stuck,
    pack_entries,
    unpack_entries,
)

SHORT, INT, LONG = st.integers(0, 32767), st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 62))
TEXT = st.text(max_size=30)
BOUNDS = st.lists(LONG, max_size=6).map(lambda found: tuple(found[: len(found) // 2 * 2]))
ENTRIES = st.one_of(
    st.builds(Acked, INT, SHORT, LONG, LONG),
    st.builds(AckedRuns, INT, SHORT, BOUNDS),
    st.builds(Retry, LONG, INT, INT, SHORT, LONG, LONG, INT, LONG, LONG, TEXT),
    st.builds(Retried, LONG),
    st.builds(DeadLetter, LONG, TEXT, TEXT, INT, TEXT, INT, TEXT, SHORT, LONG, LONG, INT, LONG, LONG),
    st.builds(Buried, LONG, TEXT, TEXT, LONG),
    st.builds(Stuck, INT, SHORT, LONG, INT, LONG, LONG),
    st.builds(LeaseEnded, INT, SHORT, LONG, LONG),
    st.builds(Moved, LONG, LONG, LONG),
    st.builds(Edited, LONG, LONG, TEXT, LONG),
)


@given(st.lists(ENTRIES, max_size=8))
def test_entries_come_back_from_their_bytes(entries):
    data = pack_entries(entries)
    assert list(unpack_entries(data)) == entries
    assert list(unpack_entries(memoryview(data))) == entries
    assert [type(one) for one in unpack_entries(data)] == [type(one) for one in entries]


def test_an_ack_is_small():
    assert len(pack_entries([Acked(1, 2, 3, 4)])) == 23

"""The compiled form of reading gives what its definition gives, whatever is asked for and whatever is damaged."""

import dataclasses
from random import Random

import pytest

from fix_storage import TINY, A, B, Engine, segment_path
from lakemq.errors import ReadError
from lakemq.storage import fetch as fetching
from lakemq.storage.index import IndexDamagedError

pytestmark = pytest.mark.skipif(fetching._hot is None, reason="the compiled twin is not built")


def filled(rng, config=TINY):
    engine = Engine(config=config)
    for number in range(60):
        bodies = [
            b"%d" % number * rng.choice((1, 30))
            if rng.random() < 0.6
            else (b"b" * rng.randrange(40),) * rng.randrange(1, 6)
            for _ in range(rng.choice((1, 1, 4)))
        ]
        engine.append(rng.choice((A, B)), *bodies)
        if rng.random() < 0.4:
            engine.flush()
            engine.sync()
    engine.flush()
    engine.sync()
    return engine


def damage(engine, rng):
    """Flip a byte of the journal, wherever it is."""
    segments = engine.group.journal.segments()
    base = rng.choice(segments).base
    file = engine.disk.open(segment_path(base))
    at = rng.randrange(200, max(file.size(), 201))
    byte = file.read_at(at, 1) or b"\0"
    file.write_at(at, [bytes((byte[0] ^ 0x10,))])
    file.close()
    engine.group.journal._mapped.clear()  # the simulated disk maps what was there then


def outcome(engine, found, index, end_index, bytes_max):
    found.hint = -1, 0  # each looks for itself
    try:
        slices = fetching.fetch(engine.group.journal, found, index, end_index, bytes_max)
    except (ReadError, IndexDamagedError) as error:
        return type(error), str(error)
    return [(bytes(one.messages), *one[1:]) for one in slices]


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_the_twin_gives_what_the_definition_gives(monkeypatch, seed, is_damaged):
    rng = Random(seed)
    engine = filled(rng)
    if is_damaged:
        damage(engine, rng)
    compiled, kinds = fetching._hot, set()
    for key in (A, B):
        found = engine.group._indexes.get(key)
        for _ in range(60):
            index = rng.randrange(found.next_index + 1)
            asked = index, index + rng.choice((1, 2, 7, 40, 500)), rng.choice((1, 300, 1500, 100_000))
            fast = outcome(engine, found, *asked)
            hint = found.hint
            monkeypatch.setattr(fetching, "_hot", None)
            assert fast == outcome(engine, found, *asked), asked
            monkeypatch.setattr(fetching, "_hot", compiled)
            kinds.add(type(fast))
            if hint[0] >= 0:  # what is remembered for the next fetch is where that index is
                found.hint = -1, 0
                assert found.find(hint[0]) == hint[1]
    assert list in kinds


def test_the_twin_takes_what_is_ordinary(monkeypatch):
    """Or it would be right, and of no use."""
    engine = filled(Random(1), dataclasses.replace(TINY, segment_bytes=64 << 10, entries_per_file=1000))
    monkeypatch.setattr(fetching, "_plan", None)
    found = engine.group._indexes.get(A)
    index = 0
    while index < found.next_index:
        index = fetching.fetch(engine.group.journal, found, index, index + 9, 100_000)[-1].next_index


def test_only_types_of_tuples_can_be_made_of_what_is_taken():
    with pytest.raises(TypeError, match="tuples"):
        fetching._hot.take_records(memoryview(b""), 0, 0, b"", -1, 0, 1, 1, 1, 0, dict)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_an_answer_that_is_half_full_ends_with_a_whole_record(monkeypatch, is_compiled):
    """The rest of a record would be checked again by the next fetch; for a few messages it is not worth it."""
    engine = Engine(config=dataclasses.replace(TINY, segment_bytes=64 << 10, entries_per_file=1000))
    for _ in range(4):
        engine.append(A, *[b"x" * 100] * 10)
    engine.flush()
    engine.sync()
    if not is_compiled:
        monkeypatch.setattr(fetching, "_hot", None)
    found = engine.group._indexes.get(A)
    message_bytes = len(fetching.fetch(engine.group.journal, found, 0, 1, 1)[0].messages)

    def fetched(count, bytes_max):
        return sum(one.message_count for one in fetching.fetch(engine.group.journal, found, 0, count, bytes_max))

    assert fetched(25, 40 * message_bytes) == 20
    assert fetched(25, 50 * message_bytes) == 25  # there is much room left: whoever asks for a number gets it
    assert fetched(20, 20 * message_bytes) == 20
    assert fetched(5, 5 * message_bytes) == 5  # one record at least, and a part of it if that is all there may be

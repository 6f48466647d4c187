"""Messages behind a note: read like all others, found again after every kind of end, and the note with them."""

import contextlib
from random import Random

import pytest

from fix_disk import DISKS
from fix_storage import TINY, A, B, block, indexes, read_all, run_sync, segment_path
from lakemq.envelope import unpack_all
from lakemq.errors import BadParameterError, LakeMQError, ReadError
from lakemq.storage.journal_record import HEADER_BYTES, RecordType, note_bytes, note_of, with_note
from lakemq.storage.recovery import open_group
from lakemq.storage.survey import survey
from lakemq.testing.crash import MODES
from lakemq.testing.disk import PowerLost, SimDisk

NOTES = [b"", b"n", b"a note", bytes(range(30))]
ADDRESS = bytes(range(16))


class Notes:
    """A fold that is the notes, in order, and how many messages had none."""

    def __init__(self):
        self.notes = []

    def restore(self, snapshot):
        self.notes = [bytes.fromhex(one) for one in snapshot.decode().split(",")[1:]]

    def apply(self, header, payload, position):
        if header.type == RecordType.NOTED:
            self.notes.append(bytes(note_of(payload)))

    def snapshot(self):
        return ("," + ",".join(one.hex() for one in self.notes)).encode() if self.notes else b""


class Store:
    """A group with a fold of notes, through its lives."""

    def __init__(self, disk=None):
        self.disk = disk or SimDisk()
        self.now_ms = 1_000_000
        self.open()

    def open(self):
        self.fold = Notes()
        self.group = open_group(self.disk, TINY, self.fold)

    def append(self, key, *bodies, note=None):
        """Where the record begins."""
        made = block(*bodies)
        self.now_ms += 10
        self.group.append(*key, *made, term=1, now_ms=self.now_ms, client_address=ADDRESS, note=note)
        if note is not None:
            self.fold.notes.append(note)
            size = len(with_note(note, made.data))
        else:
            size = len(made.data)
        return self.group.journal.end_position - HEADER_BYTES - size

    def commit(self):
        self.group.flush()
        run_sync(self.group)

    def checkpoint(self):
        ticket = self.group.begin_checkpoint()
        ticket.run()
        self.group.end_checkpoint(ticket)

    def bodies(self, key):
        first, end = self.group.first_index(*key), self.group.visible_index(*key)
        slices = self.group.read(*key, first, end - first, 1 << 20) if end > first else []
        return [message.body for one in slices for message in unpack_all(one.messages)]

    def end(self, kind):
        if kind == "close":
            self.group.close()
        elif kind == "kill":
            self.disk.lose_process()
        else:
            self.disk.lose_power(Random(1), mode="nothing")
        self.open()


@pytest.fixture(params=DISKS)
def store(request, tmp_path):
    return Store(DISKS[request.param](tmp_path))


def fill(store, count=60):
    """Records with and without notes over several segments: bodies by partition, and the notes."""
    bodies = {A: [], B: []}
    for nth in range(count):
        key = (A, B)[nth % 2]
        body = b"%d " % nth + b"x" * (nth * 7 % 300)
        note = NOTES[nth % 4] if nth % 3 else None
        store.append(key, body, note=note)
        store.commit()
        bodies[key].append(body)
    return bodies, [NOTES[nth % 4] for nth in range(count) if nth % 3]


# --- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("note", NOTES, ids=len)
def test_messages_behind_a_note_are_read_as_if_there_were_none(store, note):
    store.append(A, b"before")
    store.append(A, b"one", (b"two", b"three"), b"four", note=note)
    store.append(A, b"after")
    store.commit()
    assert indexes(store.group.read(*A, 0, 99)) == [(0, 1), (1, 5), (5, 6)]
    messages = [each for one in store.group.read(*A, 1, 3) for each in unpack_all(one.messages)]
    assert [(each.index, each.partition, each.term) for each in messages] == [(1, 0, 1), (2, 0, 1)]
    (middle,) = store.group.read(*A, 3, 1)
    assert (middle.first_index, middle.next_index) == (2, 4), "from the message that holds the index on"
    (one,) = store.group.read(*A, 4, 1)
    assert [each.body for each in unpack_all(one.messages)] == [b"four"]
    assert one.client_address == ADDRESS
    assert one.store_time_ms == store.now_ms - 10


def test_the_record_is_found_by_its_position(store):
    plain = store.append(A, b"plain")
    noted = store.append(A, b"noted", note=b"who")
    store.commit()
    header, payload = store.group.read_record(plain)
    assert (header.type, note_bytes(header.type, payload)) == (RecordType.MESSAGES, 0)
    header, payload = store.group.read_record(noted)
    assert header.type == RecordType.NOTED
    assert bytes(note_of(payload)) == b"who"
    (message,) = unpack_all(payload[note_bytes(header.type, payload) :])
    assert message.body == b"noted"
    assert (header.first_index, header.index_count, header.message_count) == (1, 1, 1)


def test_a_noted_record_may_not_be_larger_than_others(store):
    made = block(b"x" * 100)
    room = TINY.record_bytes_max - HEADER_BYTES - len(made.data) - 4
    before = store.group.journal.end_position
    with pytest.raises(BadParameterError):
        store.append(A, b"x" * 100, note=b"n" * (room + 1))
    assert store.group.journal.end_position in (before, store.group.journal.written_position)
    store.append(A, b"x" * 100, note=b"n" * room)
    store.commit()
    assert store.bodies(A) == [b"x" * 100]


def test_the_bytes_given_are_copied():
    store = Store()
    made = block(b"body")
    store.group.append(*A, *made, term=1, now_ms=1, note=b"n")
    made.data[:] = bytes(len(made.data))
    store.commit()
    assert store.bodies(A) == [b"body"]


# --- errors of read_record -----------------------------------------------------------------------------------------


def test_where_no_record_begins_there_is_none(store):
    position = store.append(A, b"x", note=b"n")
    store.commit()
    end = store.group.journal.end_position
    for wrong in (-1, position + 1, position - 1, end, end + 1000, 1 << 60):
        with pytest.raises(ReadError):
            store.group.read_record(wrong)


def test_what_is_not_written_yet_is_not_read(store):
    position = store.append(A, b"x", note=b"n")
    with pytest.raises(ReadError):
        store.group.read_record(position)
    store.group.flush()
    assert store.group.read_record(position)[0].type == RecordType.NOTED


@pytest.mark.parametrize("offset", [0, 5, 30, 83, HEADER_BYTES, HEADER_BYTES + 4, HEADER_BYTES + 20, -1])
def test_F21_a_damaged_record_is_not_read(offset):
    store = Store()
    position = store.append(A, b"body", note=b"some note")
    store.commit()
    length = store.group.journal.end_position - position
    at = position + offset % length
    store.disk.flip_bits(segment_path(0), Random(1), 1, at, at + 1)
    with pytest.raises(ReadError):
        store.group.read_record(position)


def test_what_retention_dropped_is_not_read():
    store = Store()
    position = store.append(A, b"first", note=b"n")
    fill(store)
    store.checkpoint()
    bases = store.group.journal.bases()
    assert len(bases) > 2
    store.group.journal.drop_first()
    with pytest.raises(ReadError):
        store.group.read_record(position)


# --- lives -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["close", "kill", "power"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_start_finds_messages_and_notes(kind, has_checkpoint):
    store = Store()
    bodies, notes = fill(store)
    if has_checkpoint:
        store.checkpoint()
        more, further = fill(store, 20)
        bodies = {key: bodies[key] + more[key] for key in bodies}
        notes += further
    store.end(kind)
    assert {key: store.bodies(key) for key in bodies} == bodies
    assert store.fold.notes == notes
    store.append(A, b"next", note=b"more")
    store.commit()
    assert store.bodies(A)[-1] == b"next"


def test_F22_indexes_are_made_again_of_noted_records_too():
    store = Store()
    bodies, notes = fill(store)
    store.group.close()
    for name in store.disk.names("index"):
        for file in store.disk.names(f"index/{name}"):
            with contextlib.suppress(OSError):
                store.disk.remove(f"index/{name}/{file}")
    store.open()
    assert {key: store.bodies(key) for key in bodies} == bodies
    assert store.fold.notes == notes


def test_a_survey_finds_nothing_wrong():
    store = Store()
    fill(store)
    store.group.close()
    found = survey(store.disk)
    assert found.is_sound, found.findings
    assert {key: one.next_index for key, one in found.partitions.items()} == {A: 30, B: 30}


def test_F21_a_survey_names_a_damaged_noted_record():
    store = Store()
    store.append(A, b"first")
    position = store.append(A, b"second", note=b"note")
    store.commit()
    store.append(A, b"third")  # made when the second was synced: so the second is damaged, and not a torn tail
    store.commit()
    store.disk.lose_process()
    at = position + HEADER_BYTES + 6  # within the note
    store.disk.flip_bits(segment_path(0), Random(1), 1, at, at + 1)
    found = survey(store.disk)
    assert not found.is_sound
    assert any("lost: indexes 1 to 1" in one.text for one in found.findings)
    store.open()
    assert store.fold.notes == [], "the note of a record that is not whole is not believed"
    with pytest.raises(ReadError):
        store.group.read(*A, 1, 1)


def work(store, told):
    """Appends with notes; `told` is what was synced."""
    for nth in range(25):
        body, note = b"%d" % nth * 40, b"note %d" % nth
        store.append(A, body, note=note)
        store.commit()
        told.append((body, note))
        if nth == 12:
            store.checkpoint()


@pytest.mark.parametrize("mode", [*(mode for mode in MODES if mode != "everything"), "kill"])
def test_F13_message_and_note_are_there_together_or_not_at_all(mode):
    whole = Store()
    work(whole, [])
    for point in range(5, whole.disk.crash_points):
        store, told = Store(), []
        store.disk.crash_after = point
        with pytest.raises(PowerLost):
            work(store, told)
        if mode == "kill":
            store.disk.lose_process()
        else:
            store.disk.lose_power(Random(point), mode=mode)
        store.open()
        bodies, notes = store.bodies(A), store.fold.notes
        assert len(bodies) == len(notes), f"at {point}"
        assert list(zip(bodies, notes, strict=True))[: len(told)] == told
        assert len(bodies) <= len(told) + 1


def test_a_refused_append_leaves_neither_message_nor_note():
    store = Store()
    store.append(A, b"kept", note=b"kept")
    store.commit()
    store.append(A, b"refused", note=b"refused")
    store.disk.fail("write", OSError(28, "planned"), path_contains="journal/")
    with pytest.raises(LakeMQError):
        store.group.flush()
    store.fold.notes.pop()  # as an owner does
    store.append(A, b"next", note=b"next")
    store.commit()
    store.end("kill")
    assert store.bodies(A) == [b"kept", b"next"]
    assert store.fold.notes == [b"kept", b"next"]
    assert read_all(store.group, A)

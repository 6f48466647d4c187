"""A data directory looked at from outside: each kind of damage is found, and its place named."""

import pytest

from fix_disk import DISKS, dump
from lakemq import envelope
from lakemq.message import Message
from lakemq.storage import files
from lakemq.storage.config import StorageConfig
from lakemq.storage.recovery import open_group
from lakemq.storage.survey import records, survey

SMALL = StorageConfig(segment_bytes=8000, record_bytes_max=4000, entries_per_file=20, unsynced_bytes_max=6000)


@pytest.fixture(params=DISKS)
def disk(request, tmp_path):
    return DISKS[request.param](tmp_path)


def fill(disk, appends=80):
    """Three segments and more, two partitions, closed in peace."""
    group = open_group(disk, SMALL)
    for n in range(appends):
        message = Message(body=b"body %04d " % n * 20, business_id=f"b{n}", attributes={"TAGS": "t"})
        group.append(1, n % 2, bytearray(envelope.pack(message)), 1, 1, term=1 + n // 60, now_ms=1000 + n)
        group.flush()
        ticket = group.begin_sync()
        ticket.run()
        group.end_sync(ticket)
    group.close()
    return group


def change(disk, path, offset, data):
    file = disk.open(path)
    file.write_at(offset, [data])
    file.close()


def first_segment(disk, number=0):
    return f"{files.JOURNAL_DIRECTORY}/{disk.names(files.JOURNAL_DIRECTORY)[number]}"


def places(found):
    return [finding.place for finding in found.findings if finding.is_damage]


def test_a_sound_directory_has_nothing_to_find(disk):
    fill(disk)
    seen = []
    found = survey(disk, lambda done, total: seen.append((done, total)))
    assert found.is_sound, found.findings
    assert found.findings == []
    assert {key: (one.first_index, one.next_index) for key, one in found.partitions.items()} == {
        (1, 0): (0, 40),
        (1, 1): (0, 40),
    }
    assert [term for term, _ in found.terms] == [1, 2]
    assert found.checkpoint.is_clean
    assert len(found.segments) >= 3
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)


def test_records_can_be_listed_from_any_of_them(disk):
    fill(disk)
    every = [found.position for found in records(disk)]
    assert every[0] == 0
    assert [found.position for found in records(disk, every[7])] == every[7:]


@pytest.mark.parametrize("offset", [0, 5, 30, 73, 90, 300], ids=lambda offset: f"byte-{offset}")
def test_a_changed_byte_of_a_record_costs_that_record_only_and_is_named(disk, offset):
    fill(disk)
    every = list(records(disk))
    hit = next(found for found in every[5:] if found.header.type == 1)
    change(disk, first_segment(disk), hit.position + offset, b"\xa5")
    found = survey(disk)
    damaged = [one for one in found.findings if one.place == first_segment(disk)]
    assert [f"(position {hit.position})" in one.text for one in damaged] == [True]
    assert f"{hit.header.length} bytes" in damaged[0].text
    assert sum(one.record_count for one in found.segments) == len(every) - 1
    lost = [one.text for one in found.findings if "lost" in one.text]
    assert lost == [f"lost: indexes {hit.header.first_index} to {hit.header.first_index} of topic 1 partition "
                    f"{hit.header.partition}"]  # fmt: skip


def test_a_changed_byte_of_the_very_last_record_is_damage_when_the_end_was_a_clean_one(disk):
    fill(disk)
    last = list(records(disk))[-1]
    base = survey(disk).segments[-1].base
    change(disk, f"{files.JOURNAL_DIRECTORY}/{files.segment_name(base)}", last.position - base + 100, b"\xa5")
    assert not survey(disk).is_sound


def test_a_torn_tail_is_a_note_and_no_damage(disk):
    group = open_group(disk, SMALL)
    group.append(1, 0, bytearray(envelope.pack(Message(body=b"x"))), 1, 1, term=1, now_ms=1)
    group.flush()
    end = group.journal.written_position
    group.abandon()
    change(disk, first_segment(disk), end, b"half of a record")
    found = survey(disk)
    assert found.is_sound
    assert any("torn tail" in finding.text for finding in found.findings)


@pytest.mark.parametrize("offset", [0, 10, 47, 48 * 7 + 3])
def test_a_changed_byte_of_an_index_is_named(disk, offset):
    fill(disk)
    path = f"{files.index_directory(1, 1)}/{files.index_file_name(0)}"
    change(disk, path, offset, b"\xa5")
    found = survey(disk)
    assert places(found) == [path]
    assert f"at offset {offset // 48 * 48}" in found.findings[0].text


def test_an_index_that_points_elsewhere_is_named(disk):
    fill(disk)
    here, there = (f"{files.index_directory(1, number)}/{files.index_file_name(0)}" for number in (0, 1))
    change(disk, here, 0, disk.open(there).read_at(0, 48))
    assert places(survey(disk)) == [here]


def test_a_damaged_checkpoint_is_named(disk):
    fill(disk)
    change(disk, files.CHECKPOINT, 30, b"\xa5\xa5")
    assert files.CHECKPOINT in places(survey(disk))


def test_a_missing_segment_is_named(disk):
    fill(disk)
    disk.remove(first_segment(disk, 1))
    found = survey(disk)
    assert not found.is_sound
    assert any("lost: indexes" in finding.text for finding in found.findings)


def test_strange_files_and_what_was_put_aside_are_named(disk):
    fill(disk)
    disk.open("journal/notes.txt", create=True).close()
    disk.open("strange", create=True).close()
    disk.open("quarantine/tail-1", create=True).close()
    found = survey(disk)
    assert sorted(places(found)) == ["journal/notes.txt", "strange"]
    assert "quarantine/tail-1" in [finding.place for finding in found.findings]


def test_a_survey_changes_nothing(disk):
    fill(disk)
    change(disk, first_segment(disk), 200, b"\xa5")
    before = dump(disk)
    survey(disk)
    list(records(disk))
    assert dump(disk) == before

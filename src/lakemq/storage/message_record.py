"""A record of messages made in one go: its messages stamped, their index entries, its header with both checksums.

The compiled twin in `_hot.c` is used where it could be built; what is written here is the definition.
"""

from functools import partial

from lakemq.checksum import crc32
from lakemq.record import Buffer, stamp
from lakemq.storage.index import make_entries
from lakemq.storage.journal_record import HEADER_BYTES, RecordHeader, RecordType, note_bytes, pack_header

try:
    import lakemq._hot as _hot
except ImportError:  # no compiler when it was installed
    _hot = None  # type: ignore[assignment]


def _make(
    kind: RecordType,
    payload: Buffer,
    count: int,
    partition: int,
    first_index: int,
    term: int,
    now_ms: int,
    topic: int,
    position: int,
    synced_position: int,
    client_address: bytes,
) -> tuple[bytes, bytes, int]:
    """Header, index entries and next index of `count` scanned messages, which are stamped in place.

    `position` is where the record will be in the journal, `synced_position` how much of that is synced by now.
    """
    length = HEADER_BYTES + len(payload)
    start = note_bytes(kind, payload)
    next_index = stamp(payload, start, count, partition, first_index, term, now_ms)
    offset = HEADER_BYTES + start
    entries = make_entries(payload, start, count, position + offset, offset, length, now_ms)
    header = RecordHeader(
        length,
        kind,
        partition,
        term,
        topic,
        count,
        first_index,
        next_index - first_index,
        now_ms,
        synced_position,
        client_address,
        crc32(payload),
    )
    return pack_header(header, position), entries, next_index


make_record_python = partial(_make, RecordType.MESSAGES)
make_noted_record = partial(_make, RecordType.NOTED)  # messages behind a note (`journal_record.with_note`)
make_record = _hot.make_record if _hot is not None else make_record_python

"""The compiled twins of the hot loops in record.py; None means: not accepted, ask the definition why."""

from typing import TypeVar

from lakemq.record import Buffer

T = TypeVar("T", bound=tuple[object, ...])

def crc32(data: Buffer, value: int = 0, /) -> int: ...
def measure(data: Buffer, start: int, end: int, count: int, /) -> int | None: ...
def scan(data: Buffer, start: int, end: int, count: int, message_bytes_max: int, /) -> tuple[int, int, int] | None: ...
def stamp(data: Buffer, start: int, count: int, partition: int, index: int, term: int, now_ms: int, /) -> int: ...
def make_entries(
    data: Buffer,
    start: int,
    count: int,
    position: int,
    record_offset: int,
    record_length: int,
    store_time_ms: int,
    /,
) -> bytes: ...
def whole_records(data: Buffer, position: int, /) -> int: ...
def take_records(
    mapped: memoryview,
    base: int,
    written_position: int,
    entries: bytes,
    last_next_index: int,
    index: int,
    end_index: int,
    bytes_max: int,
    topic: int,
    partition: int,
    slice_type: type[T],
    /,
) -> tuple[list[T], int, int, bool]: ...
def cut_run(
    view: memoryview, at: int, head: bytes, prefix: bytes, suffix: bytes, bytes_max: int, message_bytes_max: int, /
) -> tuple[int, int, int, int, int, int, bytes] | None: ...
def run_acks(messages: Buffer, requests: bytes, topic: bytes, head: bytes, now_ms: int, /) -> bytes: ...
def whole_frames(data: Buffer, start: int, end: int, frame_bytes_max: int, /) -> tuple[int, bool]: ...
def make_record(
    messages: Buffer,
    count: int,
    partition: int,
    first_index: int,
    term: int,
    now_ms: int,
    topic: int,
    position: int,
    synced_position: int,
    client_address: bytes,
    /,
) -> tuple[bytes, bytes, int]: ...
def new_chunk(size: int, /) -> bytearray: ...
def store_run(
    view: memoryview,
    at: int,
    alike: tuple[bytes, bytes, bytes, bytes, bytes, int, int, int],
    partition: int,
    first_index: int,
    term: int,
    now_ms: int,
    position: int,
    synced_position: int,
    buffers: list[Buffer],
    /,
) -> tuple[int, int, int, int, bytes, bytes, bytes] | None: ...

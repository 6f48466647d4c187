"""A byte stream cut into frames, wherever the network cut it.

The socket writes straight into the decoder's memory and frames are views of it, writable and valid as long as anybody
holds them: a chunk that still has readers is left to them and a new one is begun. Memory follows the bytes that have
arrived, not the length a peer claims.
"""

import struct

from lakemq.errors import BadFrameError, HttpSpokenError
from lakemq.wire.buffer import Buffer
from lakemq.wire.header import MAGIC, REQUEST_HEADER_BYTES

FRAME_BYTES_MAX = 8 << 20
_CHUNK_BYTES = 256 << 10
_LARGE_CHUNK_BYTES = 1 << 20
_BUSY_BYTES = 64 << 10
_ROOM_BYTES_MIN = 4 << 10

try:
    import lakemq._hot as _hot
except ImportError:  # no compiler when it was installed
    _hot = None  # type: ignore[assignment]

_new_chunk = _hot.new_chunk if _hot is not None else bytearray
_LENGTH = struct.Struct(">i")
_LENGTH_MAGIC = struct.Struct(">iI")
_HTTP_METHODS = {name[:4] for name in (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT")}


class FrameDecoder:
    """Takes bytes in pieces of any size, gives whole frames, length field included.

    After a BadFrameError the stream is out of step and the decoder refuses everything: close the connection.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._chunk_bytes = chunk_bytes
        self._chunk = memoryview(bytearray(0))
        self._start = 0  # of the first frame not given out
        self._end = 0  # of what has arrived
        self._is_broken = False
        self._last_bytes = 0  # of the last frame given out: the next one may be as large
        self._is_busy = False  # much came at once: larger chunks then, so that less of unfinished frames is copied

    @property
    def is_broken(self) -> bool:
        """Whether the stream is out of step: serve the frames that were given out, then close the connection."""
        return self._is_broken

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return self._end - self._start

    def room(self) -> memoryview:
        """Where the socket may write next; never empty."""
        if len(self._chunk) - self._end < _ROOM_BYTES_MIN and not self._is_broken:
            self._begin_chunk()
        return self._chunk[self._end :]

    def received(self, size: int) -> list[memoryview]:
        """`size` bytes were written into `room()`: the frames that are whole now."""
        if self._is_broken:
            raise BadFrameError("the stream was out of step before")
        self._end += size
        return self._cut()

    def received_run(self, size: int) -> memoryview | None:
        """The same, but the frames that are whole now as one piece, back to back; None if there is none."""
        if self._is_broken:
            raise BadFrameError("the stream was out of step before")
        self._end += size
        start = self._start
        if _hot is not None:
            stop, is_sound = _hot.whole_frames(self._chunk, start, self._end, self._frame_bytes_max)
        else:
            stop, is_sound = whole_frames_python(self._chunk, start, self._end, self._frame_bytes_max)
        run = self._chunk[start:stop] if stop > start else None
        self._start = stop
        if stop - start >= _BUSY_BYTES:
            self._is_busy = True
        if not is_sound:
            if run is None:
                self._checked_length()
            self._break()
        return run

    def feed(self, data: Buffer) -> list[memoryview]:
        """The same for bytes that are elsewhere: they are copied in."""
        frames: list[memoryview] = []
        view = memoryview(data)
        while len(view) and not (self._is_broken and frames):
            room = self.room()
            size = min(len(room), len(view))
            room[:size] = view[:size]
            frames += self.received(size)
            view = view[size:]
        return frames

    def _cut(self) -> list[memoryview]:
        frames: list[memoryview] = []
        while self._end - self._start >= 4:
            try:
                length = self._checked_length()
            except BadFrameError:
                if not frames:
                    raise
                return frames  # those before it are whole, however the network cut the stream; see `is_broken`
            if self._end - self._start < length:
                break
            frames.append(self._chunk[self._start : self._start + length])
            self._start += length
            self._last_bytes = length
        return frames

    def _checked_length(self) -> int:
        length: int = _LENGTH.unpack_from(self._chunk, self._start)[0]
        if not REQUEST_HEADER_BYTES <= length <= self._frame_bytes_max:
            self._break()
            why = f"length {length} is not within {REQUEST_HEADER_BYTES} and {self._frame_bytes_max}"
            raise out_of_step(length & 0xFFFFFFFF, why)
        if self._end - self._start >= 8:
            _, magic = _LENGTH_MAGIC.unpack_from(self._chunk, self._start)
            if magic != MAGIC:
                self._break()
                raise BadFrameError(f"magic {magic:#010x} instead of {MAGIC:#010x}")
        return length

    def _break(self) -> None:
        """Keep nothing of a stream that is out of step; what still comes goes into the same small room."""
        self._is_broken = True
        self._chunk, self._start, self._end = memoryview(bytearray(_ROOM_BYTES_MIN)), 0, 0

    def _begin_chunk(self) -> None:
        """A new chunk with what is left of the old; a frame gets room as it, or the one before, proves to be large."""
        held = self._chunk[self._start : self._end]
        usual = max(self._chunk_bytes, _LARGE_CHUNK_BYTES) if self._is_busy else self._chunk_bytes
        size = max(usual, max(min(2 * len(held), self._frame_bytes_max), self._last_bytes) + _ROOM_BYTES_MIN)
        chunk = memoryview(_new_chunk(size))
        chunk[: len(held)] = held
        self._chunk, self._start, self._end = chunk, 0, len(held)


def out_of_step(word: int, why: str) -> BadFrameError:
    """What to say of a stream whose next four bytes are these, and no length of a frame."""
    return HttpSpokenError(why) if word.to_bytes(4) in _HTTP_METHODS else BadFrameError(why)


def whole_frames_python(data: Buffer, start: int, end: int, frame_bytes_max: int) -> tuple[int, bool]:
    """Where the frames that are whole between two places end, and whether what follows can still become one."""
    while end - start >= 4:
        length: int = _LENGTH.unpack_from(data, start)[0]
        if not REQUEST_HEADER_BYTES <= length <= frame_bytes_max:
            return start, False
        if end - start >= 8 and _LENGTH_MAGIC.unpack_from(data, start)[1] != MAGIC:
            return start, False
        if end - start < length:
            break
        start += length
    return start, True

"""Frames after an accident: every command in every form, mutated, fed and decoded. Nothing may come of it but an error.

    python -m tests.fuzz_frames --frames 1000000 --seed 1
    python -m tests.fuzz_frames --hex 00000017cafebebe…

A mutated frame decodes or raises a LakeMQError. Any other exception, a frame that takes seconds and memory that grows
are failures; each is printed with its seed and its bytes. The same seed gives the same frames.
"""

import argparse
import random
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from lakemq import envelope, record
from lakemq.compression import Compression
from lakemq.errors import LakeMQError
from lakemq.message import BatchItem, BatchMessage, Message, Source
from lakemq.wire import session
from lakemq.wire.commands import KINDS, decode_request, decode_response, encode_error, encode_request, encode_response
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.fields import (
    Array,
    Boolean,
    ByDialect,
    Bytes,
    Double,
    JoyqueueOnly,
    Number,
    Pair,
    Present,
    String,
    Struct,
)
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import Header, read_header
from lakemq.wire.messages import EMPTY, MessageBlock, Messages
from lakemq.wire.produce import FETCH_PRODUCE_FEEDBACK, PRODUCE_MESSAGE_PREPARE, FetchProduceFeedback
from lakemq.wire.session import ADD_CONNECTION

FORMS = (Form(Dialect.DOCUMENTED, 2), *(Form(Dialect.JOYQUEUE, version) for version in (1, 2, 3, 4, 9)))
FRAME_BYTES_MAX = 1 << 20
EXPANDED_BYTES_MAX = 1 << 20
ONE_FRAME_S_MAX = 2.0
GROWTH_BYTES_MAX = 64 << 20
BATCH_FRAMES = 5000
WORKERS = 2
WORKER_ADDRESS_SPACE = 2 << 30  # what asks for more gets a MemoryError, and that is a failure
FAILURES_SHOWN = 10
PROGRESS_S = 3.0

# ---- good frames ---------------------------------------------------------------------------------------------------


def example_messages():
    """Every compression, alone and in a batch; some with a CRC left open, so that damage gets as far as the body."""
    long_id = "中" * 60
    items = (
        BatchItem(b"one " * 30, "id", {"TAGS": "a", "k": "=中"}, 1, 2),
        BatchItem(b"", long_id),
        BatchItem(bytes(300), "x"),
    )
    for kind in Compression:
        carried = {"compression": kind, "app": "shop", "send_time_ms": 1_700_000_000_000, "partition": 1}
        single = envelope.pack(Message(body=b"text " * 40, business_id=long_id, attributes={"a b": "c"}, **carried))
        batch = envelope.pack(BatchMessage(items=items, is_ordered=True, source=Source.JMQ, **carried))
        for data in (single, batch):
            yield data
            yield data[:33] + bytes(8) + data[41:]


def example_blocks(dialect):
    messages = list(example_messages())
    blocks = [MessageBlock(1, (data,)) for data in messages]
    blocks.append(MessageBlock(3, tuple(messages[:3])))
    blocks.append(EMPTY)
    return [block.in_dialect(dialect) for block in blocks]


BLOCKS = {dialect: example_blocks(dialect) for dialect in Dialect}
TEXTS = ("", "orders", "shop.left", "中é😀", "x" * 100)


def example_of(layout, form, rng):
    """A value of that layout, small enough that a mutation is likely to hit something."""

    def one(field_type):
        return example_of(field_type, form, rng)

    if layout is FETCH_PRODUCE_FEEDBACK:
        return FetchProduceFeedback("shop", "orders", 0, 10, 3000)
    if layout is PRODUCE_MESSAGE_PREPARE.types["timeout_ms"]:
        return 3000
    if layout is ADD_CONNECTION.types["language"].field:
        return rng.randrange(9)
    match layout:
        case Number():
            limit = 1 << (8 * layout.layout.size - 1)
            return rng.choice((0, 1, -1, 7, limit - 1, -limit))
        case Boolean():
            return rng.random() < 0.5
        case Double():
            return rng.choice((0.0, 99.5, -1e300))
        case String():
            return rng.choice(TEXTS)
        case Bytes():
            return rng.choice(TEXTS).encode()
        case Array():
            return tuple(one(layout.element) for _ in range(rng.choice((0, 1, 2, 2))))
        case Pair():
            return one(layout.first), one(layout.second)
        case Struct():
            return layout.of(**{name: one(field_type) for name, field_type in layout.types.items()})
        case Present():
            return one(layout.field) if rng.random() < 0.7 else None
        case ByDialect():
            return one(layout.joyqueue if form.is_joyqueue else layout.documented)
        case JoyqueueOnly():
            is_there = form.is_joyqueue and form.layout_version >= layout.since
            return one(layout.field) if is_there else layout.default
        case Messages():
            return rng.choice(BLOCKS[form.dialect])
    raise TypeError(f"no example for the field type {type(layout).__name__}: add one here")


def good_frames():
    """Some of every command and ack in every form, always the same; those with messages are the most."""
    rng = random.Random("good frames")
    frames = []
    for kind in KINDS:
        for form in FORMS:
            if kind.is_documented_only and form.is_joyqueue:
                continue
            carries_messages = kind.number in (30, 31, 50)
            for _ in range(25 if carries_messages else 3):
                command = example_of(kind.request, form, rng)
                frames.append(encode_request(command, form=form, request_id=7, send_time_ms=1_700_000_000_000))
                if kind.ack is None:
                    continue
                header = Header(kind.number, 7, form.version, 1)
                ack = example_of(kind.ack, form, rng)
                frames.append(encode_response(ack, header, dialect=form.dialect, send_time_ms=1_700_000_000_000))
    for form in FORMS:
        header = Header(50, 7, form.version, 1)
        frames.append([encode_error(LakeMQError("中 wrong"), header, dialect=form.dialect, send_time_ms=0)])
    return [b"".join(parts) for parts in frames]


GOOD_FRAMES = good_frames()

# ---- accidents -----------------------------------------------------------------------------------------------------

EDGE_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
LENGTHS = {1: struct.Struct(">b"), 2: struct.Struct(">h"), 4: struct.Struct(">i")}


def flip_bits(frame, rng):
    for _ in range(rng.choice((1, 1, 2, 8))):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)


def set_bytes(frame, rng):
    for _ in range(rng.choice((1, 1, 2, 4))):
        frame[rng.randrange(len(frame))] = rng.choice(EDGE_BYTES)


def nudge_a_length(frame, rng):
    width = rng.choice((1, 2, 2, 4))
    layout, limit = LENGTHS[width], 1 << (8 * width - 1)
    at = rng.randrange(max(len(frame) - width, 1))
    if at + width > len(frame):
        return
    value = layout.unpack_from(frame, at)[0]
    value = rng.choice((value + 1, value - 1, value * 2, -value, -1, 0, limit - 1, -limit, len(frame) - at))
    layout.pack_into(frame, at, min(max(value, -limit), limit - 1))


def cut_off(frame, rng):
    del frame[rng.randrange(len(frame)) :]


def splice(frame, rng):
    other = rng.choice(GOOD_FRAMES)
    frame[rng.randrange(len(frame)) :] = other[rng.randrange(len(other)) :]


def double_a_range(frame, rng):
    start = rng.randrange(len(frame))
    piece = frame[start : start + rng.choice((1, 2, 4, 8, 30, 200))]
    at = rng.choice((start, rng.randrange(len(frame))))
    frame[at:at] = piece * rng.choice((1, 1, 2, 20))


def remove_a_range(frame, rng):
    start = rng.randrange(len(frame))
    del frame[start : start + rng.choice((1, 2, 4, 8, 30))]


def insert_noise(frame, rng):
    at = rng.randrange(len(frame) + 1)
    frame[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 40)))


def take_for_another(frame, rng):
    """The payload of one command under the number, version or direction of another."""
    if len(frame) < 15:
        return
    number = rng.choice(KINDS).number
    at, value = rng.choice(((14, number), (14, 256 - number), (14, rng.randrange(256)), (8, rng.randrange(10))))
    frame[at] = value


ACCIDENTS = (
    flip_bits,
    flip_bits,
    set_bytes,
    set_bytes,
    nudge_a_length,
    nudge_a_length,
    nudge_a_length,
    cut_off,
    splice,
    double_a_range,
    remove_a_range,
    insert_noise,
    take_for_another,
)


def mutate(rng):
    """A good frame after one to four accidents, its length mostly set right again."""
    frame = bytearray(rng.choice(GOOD_FRAMES))
    for _ in range(rng.choice((1, 1, 2, 4))):
        if frame:
            rng.choice(ACCIDENTS)(frame, rng)
    if len(frame) >= 4 and rng.random() < 0.9:
        struct.pack_into(">i", frame, 0, len(frame))
    return bytes(frame)


# ---- what is done with them ----------------------------------------------------------------------------------------


class TookTooLongError(Exception):
    """One frame kept a processor busy for seconds."""


class NotTheSameError(Exception):
    """Two ways that must agree did not."""


def try_frame(data, rng, counts):
    """Feed a stream of bytes as a connection does; count how each step ends. LakeMQErrors end a step, no more."""
    decoder = FrameDecoder(frame_bytes_max=FRAME_BYTES_MAX, chunk_bytes=4096)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        got = _attempt("cut", counts, decoder.feed, data[start:end])
        if got is None:
            break
        frames += got
    for frame in frames:
        _try_header(frame, counts)


def _attempt(step, counts, action, *arguments):
    """What the action returned, or None where it refused."""
    try:
        result = action(*arguments)
    except LakeMQError as error:
        counts[f"{step}: {type(error).__name__}"] += 1
        return None
    counts[f"{step}: ok"] += 1
    return result


def _try_header(frame, counts):
    found = _attempt("header", counts, read_header, frame)
    if found is None:
        return
    header, start = found
    if header.type == 1 and not header.is_response:
        _attempt("recognise", counts, session.recognise, frame[start:], header.version)
    for dialect in Dialect:
        if header.is_response:
            _try_response(frame, dialect, counts)
        else:
            _try_request(frame, header, dialect, counts)


def _try_request(frame, header, dialect, counts):
    try:
        _, command = decode_request(frame, dialect)
    except LakeMQError as error:
        counts[f"request: {type(error).__name__}"] += 1
        answer = encode_error(error, header, dialect=dialect, send_time_ms=0)  # whatever it was, it can be answered
        read_header(answer)
        return
    counts["request: ok"] += 1
    form = Form(dialect, header.version)

    def encode(value):
        return b"".join(encode_request(value, form=form, request_id=1, send_time_ms=0))

    _settles("again", counts, command, encode, lambda data: decode_request(data, dialect)[1])
    for block in blocks_in(command):
        _try_block(block, counts)


def _try_response(frame, dialect, counts):
    found = _attempt("response", counts, decode_response, frame, dialect)
    if found is None or found[1] is None:
        return
    header, ack = found
    request = Header(-header.type, header.request_id, header.version, header.qos_bits)

    def encode(value):
        return b"".join(encode_response(value, request, dialect=dialect, send_time_ms=0))

    _settles("again", counts, ack, encode, lambda data: decode_response(data, dialect)[1])
    for block in blocks_in(ack):
        _try_block(block, counts)


def _settles(step, counts, value, encode, decode):
    """What was decoded can be written, and reads back as what was written."""
    written = _attempt(step, counts, encode, value)
    if written is not None and encode(decode(written)) != written:
        raise NotTheSameError("what was decoded changes each time it is written and read")


def blocks_in(value):
    """Every block of messages a command carries."""
    for topic in getattr(value, "topics", ()):
        for holder in (topic, *getattr(topic, "partitions", ())):
            block = getattr(holder, "messages", None)
            if isinstance(block, MessageBlock):
                yield block


def _try_block(block, counts):
    """As the broker and the other side's client would: store, scan, open, and lay out in the other dialect."""
    stored = _attempt("stored", counts, block.stored)
    if stored is None:
        return
    data = stored.joined()
    if _scan(data, stored.count, counts):
        _stamp(data, stored.count)
    _attempt("open", counts, lambda: list(envelope.unpack_all(data, EXPANDED_BYTES_MAX)))
    theirs = _attempt("laid out", counts, stored.in_dialect, Dialect.JOYQUEUE)
    if theirs is not None:
        back = theirs.stored()  # what we wrote we can read
        record.measure(back.joined(), 0, len(back), back.count)


def _scan(data, count, counts):
    """Whether the broker takes them; the compiled scan and its definition must say the same."""
    outcomes = []
    for scan in (record.scan, record.scan_python):
        try:
            outcomes.append(scan(data, 0, len(data), count))
        except LakeMQError as error:
            outcomes.append(type(error).__name__)
    if outcomes[0] != outcomes[1]:
        raise NotTheSameError(f"scan says {outcomes[0]}, its definition {outcomes[1]}")
    counts["scan: " + (outcomes[0] if isinstance(outcomes[0], str) else "ok")] += 1
    return not isinstance(outcomes[0], str)


def _stamp(data, count):
    copies = []
    for stamp in (record.stamp, record.stamp_python):
        copy = bytearray(data)
        free_index = stamp(copy, 0, count, 3, 1000, 5, 1_700_000_000_123)
        copies.append((free_index, copy))
    if copies[0] != copies[1]:
        raise NotTheSameError("stamp and its definition wrote different bytes")


# ---- many of them --------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What became of some frames."""

    frames: int = 0
    counts: Counter = field(default_factory=Counter)
    failures: list = field(default_factory=list)
    growth_bytes: int = 0

    def add(self, other):
        self.frames += other.frames
        self.counts += other.counts
        self.failures += other.failures
        self.growth_bytes = max(self.growth_bytes, other.growth_bytes)


def run(seed, frames):
    """Mutate and try `frames` frames; the same seed gives the same ones."""
    rng = random.Random(seed)
    report = Report()
    before = _peak_bytes()
    previous = signal.signal(signal.SIGPROF, _too_long)
    try:
        for number in range(frames):
            data = mutate(rng)
            try:
                signal.setitimer(signal.ITIMER_PROF, ONE_FRAME_S_MAX)  # processor time: others may be busy too
                try:
                    try_frame(data, rng, report.counts)
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)  # in here, so that a late alarm is this frame's too
            except Exception:
                report.failures.append(f"seed {seed} frame {number}: {data.hex()}\n{traceback.format_exc()}")
            report.frames += 1
    finally:
        signal.signal(signal.SIGPROF, previous)
    report.growth_bytes = _peak_bytes() - before
    return report


def _too_long(number, stack):
    raise TookTooLongError(f"more than {ONE_FRAME_S_MAX} s of processor time")


def _peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_at_start_bytes = 0


def _begin_worker():
    global _at_start_bytes
    resource.setrlimit(resource.RLIMIT_AS, (WORKER_ADDRESS_SPACE, WORKER_ADDRESS_SPACE))
    run("warm up", 500)
    _at_start_bytes = _peak_bytes()


def _run_batch(seed, frames):
    report = run(seed, frames)
    report.growth_bytes = _peak_bytes() - _at_start_bytes  # since the worker began, so that a slow leak adds up
    return report


def run_many(seed, frames, say):
    """As `run`, in processes of their own, with a line of progress every few seconds."""
    report = Report()
    sizes = [min(BATCH_FRAMES, frames - done) for done in range(0, frames, BATCH_FRAMES)]
    began = said = time.monotonic()
    with ProcessPoolExecutor(WORKERS, initializer=_begin_worker) as pool:
        batches = {pool.submit(_run_batch, f"{seed}/{nth}", size): nth for nth, size in enumerate(sizes)}
        for done in as_completed(batches):
            try:
                report.add(done.result())
            except BrokenProcessPool:
                report.failures.append(f"seed {seed}/{batches[done]}, or one near it: the process died")
            now = time.monotonic()
            if now - said >= PROGRESS_S:
                said = now
                rate = report.frames / (now - began)
                say(f"{report.frames} of {frames} frames, {rate:.0f} a second, {len(report.failures)} failures")
    return report


def _one_of_each(failures):
    """The shortest failure of every kind; a kind is how its last line begins."""
    by_kind = {}
    for failure in sorted(failures, key=len):
        by_kind.setdefault(failure.strip().rpartition("\n")[2].partition(":")[0], failure)
    return list(by_kind.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--hex", help="try this one frame instead")
    arguments = parser.parse_args()

    def say(line):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    if arguments.hex:
        counts = Counter()
        try_frame(bytes.fromhex(arguments.hex), random.Random(0), counts)
        for outcome, count in sorted(counts.items()):
            say(f"{count:10d}  {outcome}")
        return 0
    began = time.monotonic()
    report = run_many(arguments.seed, arguments.frames, say)
    seconds = time.monotonic() - began
    for outcome, count in sorted(report.counts.items()):
        say(f"{count:10d}  {outcome}")
    if report.growth_bytes > GROWTH_BYTES_MAX:
        report.failures.append(f"memory grew by {report.growth_bytes >> 20} MiB; {GROWTH_BYTES_MAX >> 20} are allowed")
    for failure in _one_of_each(report.failures)[:FAILURES_SHOWN]:
        say(failure)
    rate = report.frames / seconds
    say(f"{report.frames} frames of seed {arguments.seed} in {seconds:.1f} s, {rate:.0f} a second")
    say(f"memory grew by {report.growth_bytes / (1 << 20):.1f} MiB; {len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())

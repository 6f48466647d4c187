"""Mutated frames over sockets, many per connection, while an honest client is served (F51).

    python -m tests.faults.broker_frames --frames 200000

Nothing may come of it but answers that are well formed, or the end of that connection: no traceback, no hang, no memory
that grows. Frames are those of tests/fuzz_frames.py; the same seed gives the same ones.
"""

import argparse
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

from .broker_process import FaultBroker, broker
from .tools import finish, run_command, say, scratch

# After broker_process, which says where these are.
from fuzz_frames import GROWTH_BYTES_MAX, mutate  # isort: skip
from scripted.documented import Client  # isort: skip
from scripted.documented_bytes import frame, message  # isort: skip

from lakemq.errors import LakeMQError
from lakemq.wire.commands import decode_response, encode_request
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.header import MAGIC
from lakemq.wire.session import AddConnection

DIALOG_SECONDS_MAX = 30.0
FRAMES_PER_CONNECTION = (1, 5, 20, 60)
WARM_UP = 3000
HEARTBEAT = 7
MARK = 0x7FFF_FFF1
_HEAD = struct.Struct(">iIBBib")
_FORMS = (Form(Dialect.DOCUMENTED, 2), Form(Dialect.JOYQUEUE, 2), Form(Dialect.JOYQUEUE, 4))


class Fuzzer:
    """One connection after the other."""

    def __init__(self, one: FaultBroker, seed: int) -> None:
        self._broker = one
        self._rng = Random(f"{seed} frames")
        self.frames = self.connections = self.answers = 0
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.slowest_s = 0.0

    def run(self, frames: int) -> None:
        """Send at least so many more."""
        end = self.frames + frames
        while self.frames < end and len(self.problems) < 5:
            began = time.monotonic()
            try:
                self._dialog()
            except (TimeoutError, AssertionError, LakeMQError) as error:
                self.problems.append(f"connection {self.connections}: {type(error).__name__}: {error}")
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _dialog(self) -> None:
        rng = self._rng
        self.connections += 1
        form = rng.choice(_FORMS) if rng.random() < 0.8 else None
        sent = bytearray()
        if form is not None:
            hello = AddConnection(app="shop", token="t", version="1", ip="127.0.0.1", language=8)
            sent += b"".join(encode_request(hello, form=form, request_id=1, send_time_ms=0))
        count, wanted = 0, rng.choice(FRAMES_PER_CONNECTION)
        is_whole = True
        while count < wanted and is_whole:
            data = mutate(rng)
            is_whole = _leaves_stream_whole(data)
            if not is_whole and rng.random() < 0.7:  # else nearly all are of this kind: nobody reads past the first
                is_whole = True
                continue
            sent += data
            count += 1
        self.frames += count
        if is_whole:
            sent += frame(HEARTBEAT, MARK)
        with socket.create_connection(("127.0.0.1", self._broker.port), DIALOG_SECONDS_MAX) as peer:
            self._talk(peer, bytes(sent), is_whole)

    def _talk(self, peer: socket.socket, data: bytes, is_whole: bool) -> None:
        """Send, and read what comes; a stream that is whole is answered up to the heartbeat at its end."""
        deadline = time.monotonic() + DIALOG_SECONDS_MAX
        received = bytearray()
        try:
            for start in range(0, len(data), 1 << 16):
                peer.sendall(data[start : start + (1 << 16)])
            if not is_whole:
                peer.shutdown(socket.SHUT_WR)
            while True:
                peer.settimeout(max(deadline - time.monotonic(), 0.001))
                piece = peer.recv(1 << 16)
                if not piece:
                    break
                received += piece
                if self._take(received):
                    self.outcomes["served to the end"] += 1
                    return
        except (ConnectionResetError, BrokenPipeError):
            self.outcomes["reset"] += 1
            return
        assert not received, f"the connection ended inside an answer: {bytes(received[:60]).hex()}"
        self.outcomes["closed"] += 1

    def _take(self, received: bytearray) -> bool:
        """Look at the answers that are whole; whether the heartbeat's is among them."""
        is_last = False
        while len(received) >= 4:
            (length,) = struct.unpack_from(">i", received)
            assert 26 <= length <= 16 << 20, f"an answer says that it has {length} bytes"
            if len(received) < length:
                break
            one = bytes(received[:length])
            del received[:length]
            is_last = self._check(one) or is_last
        return is_last

    def _check(self, one: bytes) -> bool:
        length, magic, _, identity, request_id, kind = _HEAD.unpack_from(one)
        assert magic == MAGIC, f"an answer has the magic {magic:#x}"
        assert identity & 1, "a request came where an answer was due"
        assert identity < 8, f"an answer has the identity {identity:#x}"
        (error_bytes,) = struct.unpack_from(">h", one, 24)
        assert 0 <= error_bytes <= length - 26, f"an error text of {error_bytes} bytes in {length}"
        text = one[26 : 26 + error_bytes].decode()
        assert "Traceback" not in text, text
        assert "in the broker: its log has more" not in text, f"a bug: {text}"
        self.answers += 1
        self.outcomes[f"status {one[23]}"] += 1
        readable = 0
        for dialect in Dialect:
            try:
                decode_response(one, dialect)
                readable += 1
            except LakeMQError:
                continue
        assert readable, f"an answer of type {kind} is well formed in neither dialect: {one[:200].hex()}"
        return request_id == MARK and kind in (-HEARTBEAT, -128)


def _leaves_stream_whole(data: bytes) -> bool:
    """Whether what follows this frame is still read as frames."""
    if len(data) < 23:
        return False
    length, magic, version, identity = struct.unpack_from(">iIBB", data)
    return length == len(data) and magic == MAGIC and not (version | identity) & 0x80


class Honest(threading.Thread):
    """Somebody who only wants to send and receive, all the while; a thread of its own."""

    def __init__(self, port: int) -> None:
        super().__init__(name="honest", daemon=True)
        self._port = port
        self._is_over = threading.Event()
        self.rounds = 0
        self.times_s: list[float] = []
        self.failure: str | None = None

    def run(self) -> None:
        try:
            with Client(self._port, "honest", timeout_s=DIALOG_SECONDS_MAX) as client:
                client.add_connection()
                client.add_producer(["honest"])
                client.add_consumer(["honest"])
                while not self._is_over.is_set():
                    self._round(client)
        except Exception as error:
            self.failure = f"the honest client: {type(error).__name__}: {error}"

    def _round(self, client: Client) -> None:
        began = time.monotonic()
        body = f"honest {self.rounds}".encode()
        ((_, code, ((partition, index, _),)),) = client.produce_message(
            [("honest", [message(body, partition=0, app="honest")])]
        )
        assert code == 0, f"code {code} for a message"
        answer = client.fetch_topic_message([("honest", 10)], long_poll=5000)
        ((_, messages),) = answer["data"]
        assert [one["body"] for one in messages] == [body], f"{len(messages)} messages came"
        assert messages[0]["index"] == index, "another index came"
        ((_, ((_, code),)),) = client.commit_ack([("honest", [(partition, [(index, 0)])])])
        assert code == 0, f"code {code} for an ack"
        self.times_s.append(time.monotonic() - began)
        self.rounds += 1

    def finish(self) -> str | None:
        """Stop; what went wrong."""
        self._is_over.set()
        self.join(DIALOG_SECONDS_MAX + 10)
        if self.is_alive():
            return "the honest client: still waits for an answer"
        if not self.rounds:
            return self.failure or "the honest client was not served once"
        return self.failure

    def percentile_ms(self, share: float) -> float:
        times = sorted(self.times_s)
        return round(1000 * times[min(int(len(times) * share), len(times) - 1)], 1) if times else -1.0


def fuzz(place: Path, frames: int, seed: int) -> tuple[dict[str, object], list[str]]:
    """What came of so many frames, and what was wrong."""
    with broker(place) as one:
        honest = Honest(one.port)
        honest.start()
        fuzzer = Fuzzer(one, seed)
        fuzzer.run(min(WARM_UP, frames))
        before, started, said = one.rss_bytes(), time.monotonic(), time.monotonic()
        while fuzzer.frames < frames and not fuzzer.problems and one.is_running:
            fuzzer.run(min(2000, frames - fuzzer.frames))
            if time.monotonic() - said > 5:
                said = time.monotonic()
                say(f"{fuzzer.frames} frames, {(one.rss_bytes() - before) >> 20} MiB more")
        problems = list(fuzzer.problems)
        failure = honest.finish()
        if failure is not None:
            problems.append(failure)
        growth = 0
        if one.is_running:
            growth = one.peak_bytes() - before
            if growth > GROWTH_BYTES_MAX:
                problems.append(f"memory grew by {growth >> 20} MiB; {GROWTH_BYTES_MAX >> 20} are allowed")
            gauges = one.gauges()
            if gauges["bugs_total"]:
                problems.append(f"{gauges['bugs_total']} requests ran into a bug")
            one.stop()
        else:
            problems.append(f"the broker ended by itself: {one.stderr()[-2000:]}")
            gauges = {}
        if "Traceback (most recent call last)" in one.stderr():
            at = one.stderr().index("Traceback (most recent call last)")
            problems.append(f"a traceback: {one.stderr()[max(at - 300, 0) : at + 3000]}")
        seconds = time.monotonic() - started
        summary = {
            "frames": fuzzer.frames,
            "connections": fuzzer.connections,
            "answers": fuzzer.answers,
            "outcomes": dict(fuzzer.outcomes.most_common(25)),
            "frames_per_second": round((fuzzer.frames - WARM_UP) / seconds) if seconds else 0,
            "growth_mib": round(growth / (1 << 20), 1),
            "topics": gauges.get("topics"),
            "slowest_connection_s": round(fuzzer.slowest_s, 2),
            "honest_rounds": honest.rounds,
            "honest_p50_ms": honest.percentile_ms(0.5),
            "honest_p99_ms": honest.percentile_ms(0.99),
        }
        return summary, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    with scratch() as place:
        summary, problems = fuzz(place, options.frames, options.seed)
    return finish({**summary, "seconds": round(time.monotonic() - started, 1)}, problems)


if __name__ == "__main__":
    run_command(main)

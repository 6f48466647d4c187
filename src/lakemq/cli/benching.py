"""What `lakemq bench` does."""

from collections import deque
from typing import TYPE_CHECKING

from lakemq.cli.failure import TIMED_OUT, CommandError
from lakemq.cli.messaging import checked_acks, connected
from lakemq.cli.options import Chosen
from lakemq.cli.printing import Progress, print_one

if TYPE_CHECKING:
    from lakemq.client.future import SendFuture

_WAITING_MAX = 20_000
_LOT = 2000


def bench_send(said: Chosen, topic: str, seconds: float, size: int, acks: str) -> None:
    """Messages of that size, through the buffer of the client; one that fails ends it."""
    level = checked_acks(acks)
    body = bytes(size)
    waiting: deque[SendFuture] = deque()
    sent = 0
    with connected(said, acks=level, compression="none") as client:
        progress = Progress("messages")
        while progress.seconds < seconds:
            for _ in range(_LOT):
                waiting.append(client.send_soon(topic, body))
            sent += _LOT
            while len(waiting) > _WAITING_MAX:
                waiting.popleft().result()
            progress.tell(sent)
        while waiting:
            waiting.popleft().result()
        _tell(said, "sent", sent, sent * size, progress.seconds)


def bench_recv(said: Chosen, topic: str, seconds: float, group: str) -> None:
    """What is there, acked."""
    received = body_bytes = 0
    with connected(said) as client, client.consumer(topic, group=group, count=_LOT) as consumer:
        progress = Progress("messages")
        ended = 0.0
        while progress.seconds < seconds:
            lot = consumer.receive(_LOT, timeout="1s")
            if not lot:
                break
            body_bytes += sum(len(delivery.body) for delivery in lot)
            received += len(lot)
            ended = progress.seconds  # without the wait for what does not come
            progress.tell(received)
    if not received:
        raise CommandError(
            f"topic {topic!r} has nothing for group {group!r}", TIMED_OUT, fix="lakemq bench send, then once more"
        )
    _tell(said, "received", received, body_bytes, ended)


def _tell(said: Chosen, what: str, count: int, body_bytes: int, seconds: float) -> None:
    passed = max(seconds, 1e-9)
    row = {
        what: count,
        "seconds": round(seconds, 3),
        "messages_per_second": round(count / passed),
        "megabytes_per_second": round(body_bytes / passed / 1e6, 1),
    }
    print_one(row, said.output)

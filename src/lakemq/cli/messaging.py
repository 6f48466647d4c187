"""What `lakemq send`, `recv` and `tail` do: the Python client, and messages as lines or JSON.

Bodies and JSON go to stdout, what is said about them to stderr; a pipe gets bodies as they were sent.
"""

import base64
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from lakemq import connect
from lakemq.attributes import TAGS
from lakemq.cli.failure import DONE, FAILED, PARTLY, TIMED_OUT, USAGE, CommandError, describe, know
from lakemq.cli.options import Chosen
from lakemq.cli.printing import Progress, iso, moment, printable, remark
from lakemq.client.duration import duration_ms, moment_ms
from lakemq.client.receipt import Receipt
from lakemq.delivery.filters import parse_filter
from lakemq.errors import BadParameterError, LakeMQError

if TYPE_CHECKING:
    from lakemq.client.blocking import Client
    from lakemq.client.config import Acks
    from lakemq.client.delivery import Delivery
    from lakemq.client.future import SendFuture
    from lakemq.delivery.filters import Filter

_ACKS = {"flush": "flushed", "write": "written", "receive": "received", "none": "not confirmed"}
_FETCH_MAX = 1000
_WAITING_MAX = 10_000  # sends whose outcome nobody has looked at yet
_FAILURES_SHOWN = 5
_COUNTER = "{n}"
_FOREVER = "1h"  # of one wait; there is another one after it


@dataclass(frozen=True, slots=True)
class Wish:
    """What to send, as it was said."""

    topic: str
    body: str | None
    key: str | None
    tags: list[str]
    headers: list[str]
    file: Path | None
    has_stdin_lines: bool
    count: int | None
    acks: str
    partition: int | None
    delay: str | None = None
    expire: str | None = None
    uniq_id: str | None = None

    @property
    def is_many(self) -> bool:
        """Whether there may be several messages."""
        return self.count is not None or self.has_stdin_lines

    def details(self, number: int, headers: dict[str, str]) -> dict[str, Any]:
        """What goes with the n-th message."""
        return {
            "key": _numbered(self.key, number) if self.count is not None else self.key,
            "tags": self.tags or None,
            "headers": headers or None,
            "partition": self.partition,
            "acks": checked_acks(self.acks),
            "delay": self.delay,
            "expire": self.expire,
            "uniq_id": _numbered(self.uniq_id, number) if self.is_many else self.uniq_id,
        }


def _numbered(text: str | None, number: int) -> str | None:
    return None if text is None else text.replace(_COUNTER, str(number))


def checked_acks(text: str) -> "Acks":
    """What `--acks` says."""
    if text not in _ACKS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(_ACKS)}", param_hint="--acks")
    return cast("Acks", text)  # as the line above has made sure


def connected(said: Chosen, **more: Any) -> "Client":
    """A client for the broker and the app that were chosen."""
    know(app=said.app_name)
    return connect(said.server_url(), app=said.app, token=said.token, **more)


# --- sending -------------------------------------------------------------------------------------------------------


def send(said: Chosen, wish: Wish) -> int:
    """Send it; the exit code."""
    checked_acks(wish.acks)
    headers = _headers(wish.headers)
    for hint, text in (("--delay", wish.delay), ("--expire", wish.expire)):
        if text is not None:
            _duration(text, hint)
    if wish.is_many and wish.uniq_id is not None and _COUNTER not in wish.uniq_id:
        raise typer.BadParameter("several messages need several ids: put {n} into it", param_hint="--uniq-id")
    bodies = _bodies(wish)
    know(app=said.app_name, topic=wish.topic, role="--producer")
    if not wish.is_many:
        with connected(said) as client:
            _send_one(said, wish, headers, next(bodies), client)
        return DONE
    with connected(said) as client:
        return _send_many(said, wish, headers, bodies, client)


def _headers(said: list[str]) -> dict[str, str]:
    headers = {}
    for text in said:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--header")
        headers[name] = value
    return headers


def _bodies(wish: Wish) -> Iterator[bytes]:
    """What to send, one after the other; checked before anything is."""
    if sum((wish.body is not None, wish.file is not None, wish.has_stdin_lines)) != 1:
        raise typer.BadParameter("give one of BODY, --file and --stdin-lines")
    if wish.has_stdin_lines:
        if wish.count is not None:
            raise typer.BadParameter("--count belongs to BODY or --file; --stdin-lines sends what comes")
        return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    body = _file_content(wish.file) if wish.file is not None else (wish.body or "").encode("utf-8", "surrogateescape")
    if wish.count is None:
        return iter([body])
    return (body.replace(_COUNTER.encode(), str(number).encode()) for number in range(1, wish.count + 1))


def _file_content(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--file") from None


def _send_one(said: Chosen, wish: Wish, headers: dict[str, str], body: bytes, client: "Client") -> None:
    began = time.perf_counter()
    receipt = client.send(wish.topic, body, **wish.details(1, headers))
    spent_ms = (time.perf_counter() - began) * 1000
    if said.is_json:
        _print_receipt(said, receipt, spent_ms)
        return
    place = f"partition {_or_dash(receipt.partition)}  offset {_or_dash(receipt.offset)}"
    known = f"  id {receipt.message_id}" if receipt.message_id is not None else ""
    typer.echo(f"sent  {wish.topic}  {place}{known}  {_ACKS[wish.acks]}  {spent_ms:.1f} ms")


def _send_many(said: Chosen, wish: Wish, headers: dict[str, str], bodies: Iterator[bytes], client: "Client") -> int:
    outcomes = Outcomes(said)
    for number, body in enumerate(bodies, 1):
        try:
            future = client.send_soon(wish.topic, body, **wish.details(number, headers))
        except LakeMQError as error:  # this one cannot be sent; the others can
            outcomes.failed(error)
        else:
            outcomes.add(future)
    outcomes.settle()
    sent, seconds = outcomes.sent_count, outcomes.progress.seconds
    (remark if said.is_json else typer.echo)(
        f"sent  {wish.topic}  {sent} messages in {seconds:.2f} s, {sent / max(seconds, 1e-9):.0f}/s  {_ACKS[wish.acks]}"
    )
    if outcomes.failed_count:
        remark(f"{outcomes.failed_count} of {sent + outcomes.failed_count} messages failed")
        return PARTLY if sent else FAILED
    return DONE


class Outcomes:
    """What became of messages that are sent without waiting for each; told in their order, as soon as it is known."""

    def __init__(self, said: Chosen) -> None:
        self._said = said
        self._waiting: deque[SendFuture] = deque()
        self.progress = Progress("sent")
        self.sent_count = self.failed_count = 0

    def add(self, future: "SendFuture") -> None:
        """One more; waits if too many have no outcome yet."""
        waiting = self._waiting
        waiting.append(future)
        while waiting and (waiting[0].done() or len(waiting) > _WAITING_MAX):
            self._take()
        self.progress.tell(self.sent_count)

    def settle(self) -> None:
        """Wait for all."""
        while self._waiting:
            self._take()

    def failed(self, error: LakeMQError) -> None:
        """One was not sent; the first few are told in full."""
        self.failed_count += 1
        if self.failed_count <= _FAILURES_SHOWN:
            remark(describe(error))

    def _take(self) -> None:
        try:
            receipt = self._waiting.popleft().result()
        except LakeMQError as error:
            self.failed(error)
            return
        self.sent_count += 1
        if self._said.is_json:
            _print_receipt(self._said, receipt, None)


def _print_receipt(said: Chosen, receipt: Receipt, spent_ms: float | None) -> None:
    told: dict[str, Any] = {
        "topic": receipt.topic,
        "partition": receipt.partition,
        "offset": receipt.offset,
        "message_id": receipt.message_id,
        "acks": receipt.acks,
    }
    if spent_ms is not None:
        told["duration_ms"] = round(spent_ms, 3)
    # Many receipts are a stream in either form: nobody waits for the last one.
    typer.echo(json.dumps(told, indent=2 if said.output == "json" and spent_ms is not None else None))


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


# --- receiving -----------------------------------------------------------------------------------------------------


def recv(
    said: Chosen, topic: str, group: str | None, count: int, timeout: str, wanted: str | None, *, is_acking: bool
) -> int:
    """Receive so many; the exit code."""
    printer = Printer(said)
    wait_ms = _duration(timeout, "--timeout")
    _know_receiver(said, topic, group)
    done = 0
    is_late = False
    with connected(said) as client:
        size = min(count or _FETCH_MAX, _FETCH_MAX)
        consumer = client.consumer(topic, group=group, count=size, auto_ack=False, filter=wanted)
        try:
            while not count or done < count:
                lot = consumer.receive(min(count - done, size) if count else size, timeout=f"{wait_ms}ms")
                if not lot:
                    is_late = bool(count)
                    break
                for delivery in lot:
                    printer.show(delivery)
                    done += 1
                    if is_acking:
                        delivery.ack()  # not before it was printed
        finally:
            printer.end()
            consumer.close(is_clean=is_acking)
        left = sum(one.lag for one in client.lag(topic, group))
    remark(f"{'acked' if is_acking else 'looked at'} {done}, lag {left}")
    if is_late:
        remark(f"no message of {topic} came within {timeout}")
        return TIMED_OUT
    return PARTLY if printer.damaged else DONE


def tail(
    said: Chosen,
    topic: str,
    start: str,
    count: int,
    group: str | None,
    partition: int | None = None,
    wanted: str | None = None,
) -> int:
    """Print messages until interrupted, or so many if not 0; the exit code."""
    place: str | int = int(start) if start.isascii() and start.isdigit() else start
    if isinstance(place, str) and place not in ("earliest", "latest"):
        try:
            moment_ms(place, time.time_ns() // 1_000_000)
        except BadParameterError as error:
            raise typer.BadParameter(str(error), param_hint="--from") from None
    printer = Printer(said, is_endless=not count)
    _know_receiver(said, topic, group)
    done = 0
    chosen_filter = parse_filter(wanted or "")
    only = None if partition is None else [partition]
    with connected(said) as client:
        if partition is not None:
            _check_partition(client, topic, group, partition)
        with client.reader(topic, start=place, group=group, partitions=only) as reader:
            while not count or done < count:
                lot = reader.receive(_FETCH_MAX, timeout=_FOREVER)
                for delivery in [one for one in lot if _is_wanted(chosen_filter, one)]:
                    printer.show(delivery)
                    done += 1
                    if done == count:
                        break
    printer.end()
    return PARTLY if printer.damaged else DONE


def _know_receiver(said: Chosen, topic: str, group: str | None) -> None:
    full = f"{said.app_name}.{group}" if group else said.app_name
    know(app=said.app_name, group=full, topic=topic, role="--consumer")


def _check_partition(client: "Client", topic: str, group: str | None, partition: int) -> None:
    """One that is not there would be waited for, and nobody would know for what."""
    known = client.ranges(topic, group)
    if partition not in known:
        raise CommandError(
            f"topic {topic} has no partition {partition}; it has {len(known)}, from 0 on",
            USAGE,
            fix=f"lakemq topic show {topic}",
        )


def _is_wanted(chosen_filter: "Filter", delivery: "Delivery") -> bool:
    """Whether it is to be printed; what cannot be read is, so that it is told."""
    try:
        tags = {TAGS: ",".join(delivery.tags)} if delivery.tags else {}
        return chosen_filter.matches({**delivery.attributes(), **tags})
    except LakeMQError:
        return True


class Printer:
    """Messages as the user wants them: for people, as one JSON array, or an object per line."""

    def __init__(self, said: Chosen, *, is_endless: bool = False) -> None:
        self._is_json = said.is_json
        self._kept: list[dict[str, Any]] | None = [] if said.output == "json" and not is_endless else None
        self._is_terminal = sys.stdout.isatty()
        self.damaged = 0

    def show(self, delivery: "Delivery") -> None:
        """One message."""
        try:
            body = delivery.body
        except LakeMQError as error:
            self.damaged += 1
            remark(f"{delivery.topic} {delivery.partition}:{delivery.offset} cannot be read: {error}")
            return
        if self._is_json:
            self._show_json(delivery, body)
        else:
            remark(_headline(delivery))
            self._show_body(body)

    def end(self) -> None:
        """That was all."""
        if self._kept is not None:
            typer.echo(json.dumps(self._kept, indent=2))
            self._kept = None

    def _show_json(self, delivery: "Delivery", body: bytes) -> None:
        told: dict[str, Any] = {
            "topic": delivery.topic,
            "partition": delivery.partition,
            "offset": delivery.offset,
            "stored_at": iso(delivery.stored_at),
            "key": delivery.key,
            "tags": list(delivery.tags),
            "headers": delivery.headers,
            "attempt": delivery.attempt,
        }
        try:
            told["body"] = body.decode()
        except UnicodeDecodeError:
            told["body_base64"] = base64.b64encode(body).decode()
        if self._kept is not None:
            self._kept.append(told)
        else:
            typer.echo(json.dumps(told))

    def _show_body(self, body: bytes) -> None:
        if self._is_terminal:
            typer.echo("\n".join(map(printable, body.decode("utf-8", "replace").split("\n"))))
        else:
            sys.stdout.buffer.write(body + b"\n")
            sys.stdout.buffer.flush()


def _headline(delivery: "Delivery") -> str:
    parts = [f"{delivery.topic} {delivery.partition}:{delivery.offset}", moment(delivery.stored_at)]
    if delivery.key is not None:
        parts.append(f"key={delivery.key}")
    if delivery.tags:
        parts.append(f"tags={','.join(delivery.tags)}")
    parts += [f"{name}={value}" for name, value in delivery.headers.items()]
    parts.append(f"try {delivery.attempt}")
    return printable("  ".join(parts))


def _duration(text: str, hint: str) -> int:
    try:
        return duration_ms(text)
    except BadParameterError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None

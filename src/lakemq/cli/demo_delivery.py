"""The part of the demo about messages that wait, fail or belong together."""

import time
from collections.abc import Callable
from typing import Any

TOPIC = "payments"
GROUP = "ledger"
DELAY_SECONDS = 2
_PATIENCE_SECONDS = 20.0

Say = Callable[[str], None]
Expect = Callable[[str, object, object], None]


class DeliveryDemo:
    """Delay, retry, dead letter, resend, commit, roll back: each with what came of it."""

    def __init__(self, mq: Any, admin: Any, say: Say, expect: Expect) -> None:
        self._mq = mq
        self._admin = admin
        self._say = say
        self._expect = expect

    def run(self) -> None:
        """All steps."""
        self._admin.ensure_topic(TOPIC, partitions=1)
        self._admin.subscribe(
            TOPIC, f"shop.{GROUP}", consumer={"retry_first_ms": 200, "retry_times": 2}, start="latest"
        )
        self._delay()
        self._retry()
        self._dead_letter()
        self._transactions()

    def _delay(self) -> None:
        began = time.monotonic()
        self._mq.send(TOPIC, b"later", delay=f"{DELAY_SECONDS}s")
        (found,) = self._receive(1)
        spent = time.monotonic() - began
        self._say(f"[green]delay[/green]: a message sent with delay={DELAY_SECONDS}s came after {spent:.2f} s")
        self._expect("delayed message, not before its time", (b"later", True), (found.body, spent >= DELAY_SECONDS))

    def _retry(self) -> None:
        self._mq.send(TOPIC, b"second time lucky")
        attempts = []
        with self._mq.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer:
            for delivery in self._each(consumer):
                attempts.append(delivery.attempt)
                if delivery.attempt == 1:
                    delivery.retry()
                else:
                    delivery.ack()
                    break
        self._say("[green]retry[/green]: a message failed once, and came again a moment later as attempt 2")
        self._expect("attempts of a message that fails once", [1, 2], attempts)

    def _dead_letter(self) -> None:
        self._mq.send(TOPIC, b"hopeless", key="c-13")
        attempts = []
        with self._mq.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer:
            for delivery in self._each(consumer):
                attempts.append(delivery.attempt)
                delivery.retry(reason="no such account")
                if delivery.attempt == 3:
                    break
        letters = self._wait_for(lambda: list(self._admin.dead_letters(topic=TOPIC)))
        letter = letters[0]
        self._say(
            f"[green]dead letter[/green]: after {len(attempts)} attempts it is dead letter {letter['id']}: "
            f"{letter['cause']}, {letter['reason']!r}, key {letter['key']}"
        )
        self._expect(
            "attempts before the dead letter, its cause", ([1, 2, 3], "exhausted"), (attempts, letter["cause"])
        )
        self._admin.resend_dead_letter(letter["id"], by="demo")
        (again,) = self._receive(1)
        left = len(list(self._admin.dead_letters(topic=TOPIC)))
        self._say(
            f"[green]resend[/green]: an operator sent it again, and group {GROUP} has handled it; {left} are left"
        )
        self._expect("resent, and dead letters left", (b"hopeless", 0), (again.body, left))

    def _transactions(self) -> None:
        with self._mq.transaction(TOPIC) as transaction:
            transaction.send(b"debit")
            transaction.send(b"credit")
            before = [found.body for found in self._receive(1, patience_seconds=0.5)]
        both = sorted(found.body for found in self._receive(2))
        self._say("[green]commit[/green]: two messages of a transaction, seen by nobody before, together after")
        self._expect("before the commit, after it", ([], [b"credit", b"debit"]), (before, both))
        try:
            with self._mq.transaction(TOPIC) as transaction:
                transaction.send(b"never happened")
                raise _ChangedMyMindError
        except _ChangedMyMindError:
            pass
        after = [found.body for found in self._receive(1, patience_seconds=0.5)]
        self._say("[green]roll back[/green]: an error inside a transaction, and nobody ever sees its message")
        self._expect("after the roll-back", [], after)

    def _receive(self, count: int, *, patience_seconds: float = _PATIENCE_SECONDS) -> list[Any]:
        found: list[Any] = []
        until = time.monotonic() + patience_seconds
        with self._mq.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer:
            while len(found) < count and time.monotonic() < until:
                found += consumer.receive(count - len(found), timeout="500ms")
            for delivery in found:
                delivery.ack()
        return found

    def _each(self, consumer: Any) -> Any:
        until = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < until:
            yield from consumer.receive(1, timeout="1s")

    def _wait_for(self, look: Callable[[], list[Any]]) -> list[Any]:
        until = time.monotonic() + _PATIENCE_SECONDS
        while not (found := look()) and time.monotonic() < until:
            time.sleep(0.05)  # until it is there, or the deadline
        return found


class _ChangedMyMindError(Exception):
    """Raised inside a transaction, on purpose."""

"""`lakemq demo`: the main job end to end, on a broker of its own and through real sockets, each step with what it did.

Everything that is claimed is counted; if a count is wrong, the demo says so and fails.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import lakemq
from lakemq.cli.demo_delivery import DeliveryDemo
from lakemq.cli.demo_pipeline import PipelineDemo
from lakemq.cli.failure import CommandError
from lakemq.errors import LakeMQError

ORDERS = 1000
TOPIC = "orders"
_START_SECONDS = 30.0


def show() -> None:
    """Run the demo on the terminal."""
    with tempfile.TemporaryDirectory(prefix="lakemq-demo-") as directory:
        _Demo(Console(), Path(directory)).run()


class _Demo:
    """The steps, and what they have to add up to."""

    def __init__(self, console: Console, directory: Path) -> None:
        self._console = console
        self._directory = directory
        self._step = 0
        self._rows: list[tuple[str, str, str, bool]] = []

    def run(self) -> None:
        """All steps; CommandError if something does not add up."""
        self._console.print("[bold]LakeMQ demo[/bold]: a broker, a producer, three kinds of consumers, and a lake\n")
        with self._broker() as broker:
            with lakemq.connect(
                broker.url, app="shop", admin_url=broker.admin_url, admin_token=broker.admin_token
            ) as mq:
                mq.admin.ensure_topic(TOPIC, partitions=4, is_archived=True)
                self._send(mq)
                self._consume(mq, "billing")
                self._consume(mq, "mailer")
                self._replay(mq)
                DeliveryDemo(mq, mq.admin, self._say, self._expect).run()
            self._kill(broker)
            with lakemq.connect(broker.url, app="shop") as mq:
                self._after_the_kill(mq)
                self._refuse(mq)
                PipelineDemo(mq, broker.url, self._directory / "lake", self._say, self._expect).run()
        self._summary()

    def _say(self, text: str) -> None:
        self._step += 1
        self._console.print(f"{self._step}. {text}")

    def _expect(self, what: str, wanted: object, found: object) -> None:
        self._rows.append((what, str(wanted), str(found), wanted == found))

    @contextmanager
    def _broker(self) -> "Iterator[_Process]":
        broker = _Process(self._directory)
        began = time.perf_counter()
        broker.start()
        try:
            spent = time.perf_counter() - began
            self._say(f"[green]start[/green]: `lakemq dev` serves at {broker.url} after {spent:.1f} s")
            yield broker
        finally:
            broker.stop()

    def _send(self, mq: Any) -> None:
        receipt = mq.send(TOPIC, {"order": 0, "city": "Beijing"}, key="c-7", tags=["paid"], headers={"v": "2"})
        self._say(
            f"[green]send[/green]: one order with key, tag and header is on disk at partition {receipt.partition}, "
            f"offset {receipt.offset}"
        )
        began = time.perf_counter()
        futures = [mq.send_soon(TOPIC, {"order": n}, key=f"c-{n % 50}") for n in range(1, ORDERS)]
        mq.flush()
        spent = time.perf_counter() - began
        confirmed = sum(future.exception() is None for future in futures)
        self._say(
            f"[green]send many[/green]: {confirmed} more, in batches, confirmed on disk in {spent * 1000:.0f} ms "
            f"({confirmed / spent:,.0f} a second)"
        )
        self._expect("orders confirmed on disk", ORDERS, confirmed + 1)

    def _consume(self, mq: Any, group: str) -> None:
        seen: set[int] = set()
        last_of_key: dict[str, int] = {}
        is_in_order = True
        began = time.perf_counter()
        with mq.consumer(TOPIC, group=group, auto_ack=False) as consumer:
            while len(seen) < ORDERS:
                deliveries = consumer.receive(500, timeout="5s")
                if not deliveries:
                    break
                for delivery in deliveries:
                    number = delivery.json()["order"]
                    is_in_order &= number > last_of_key.get(delivery.key, -1)
                    last_of_key[delivery.key] = number
                    seen.add(number)
                    delivery.ack()
        spent = time.perf_counter() - began
        lag = sum(place.lag for place in mq.lag(TOPIC, group))
        self._say(
            f"[green]receive and ack[/green]: group {group} got {len(seen)} in {spent * 1000:.0f} ms, each key in "
            f"order: {'yes' if is_in_order else 'NO'}; lag {lag}"
        )
        self._expect(
            f"orders received by {group}, keys in order, lag", (ORDERS, True, 0), (len(seen), is_in_order, lag)
        )

    def _replay(self, mq: Any) -> None:
        with mq.reader(TOPIC, start="earliest", stop="now") as reader:
            count = sum(1 for _ in reader)
        self._say(f"[green]replay[/green]: a reader went through all {count} once more; no group moved")
        self._expect("orders replayed", ORDERS, count)

    def _kill(self, broker: "_Process") -> None:
        broker.kill()
        began = time.perf_counter()
        broker.start()
        spent = time.perf_counter() - began
        self._say(
            f"[green]kill -9[/green]: the broker is gone; started again on the same directory after {spent:.1f} s"
        )

    def _after_the_kill(self, mq: Any) -> None:
        with mq.reader(TOPIC, start="earliest", stop="now") as reader:
            count = sum(1 for _ in reader)
        lag = sum(place.lag for group in ("billing", "mailer") for place in mq.lag(TOPIC, group))
        receipt = mq.send(TOPIC, {"order": ORDERS}, key="c-7")
        with mq.consumer(TOPIC, group="billing") as consumer:
            found = consumer.receive(10, timeout="5s")
        self._say(
            f"[green]recovered[/green]: {count} orders and both groups' places are there; a new one went to partition "
            f"{receipt.partition}, offset {receipt.offset}, and was received"
        )
        self._expect("orders and lag after the kill", (ORDERS, 0), (count, lag))
        self._expect("received after the kill", [ORDERS], [one.json()["order"] for one in found])

    def _refuse(self, mq: Any) -> None:
        self._say("[green]refuse[/green] what is not right, with a code and a next step")
        for what, body in (("a body of 5 MB", os.urandom(5 << 20)), ("a name with a space", b"x")):
            try:
                mq.send(TOPIC if "body" in what else "no such", body)
            except LakeMQError as error:
                self._console.print(f"   {what}: [red]{error.status} {type(error).__name__}[/red] {error}")
                self._console.print(f"   {'':>{len(what)}}  {error.fix}")
            else:
                self._expect(f"{what} refused", True, False)

    def _summary(self) -> None:
        table = Table("what", "wanted", "found", "")
        for what, wanted, found, is_right in self._rows:
            verdict = "[green]right[/green]" if is_right else "[red]WRONG[/red]"
            table.add_row(what, escape(wanted), escape(found), verdict)
        self._console.print()
        self._console.print(table)
        wrong = [row for row in self._rows if not row[3]]
        if wrong:
            raise CommandError(f"{len(wrong)} of {len(self._rows)} do not add up")
        self._console.print(
            "\nNext: [bold]lakemq dev[/bold] in one terminal, [bold]lakemq send orders hello[/bold] and "
            "[bold]lakemq recv orders[/bold] in another; docs/client.md for programs, docs/pipeline.md for Spark."
        )


class _Process:
    """A broker of our own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.url = self.admin_url = self.admin_token = ""

    def start(self) -> None:
        """Wait until it serves."""
        ready_file = self._directory / "ready"
        ready_file.unlink(missing_ok=True)
        log = (self._directory / "log").open("ab")
        command = [sys.executable, "-m", "lakemq", "dev", "--port", "0", "--admin-port", "0"]
        command += ["--data", str(self._directory / "data"), "--ready-file", str(ready_file)]
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + _START_SECONDS
        while not ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                text = (self._directory / "log").read_text(errors="replace")[-2000:]
                raise CommandError(f"the broker did not start: {text}")
            time.sleep(0.01)  # until the ready file is there, or the deadline
        told = json.loads(ready_file.read_text())
        self.url = f"lakemq://127.0.0.1:{told['port']}"
        self.admin_url = f"http://127.0.0.1:{told['admin_port']}"
        self.admin_token = told["admin_token"]

    def kill(self) -> None:
        """As it happens in the real world."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """In peace."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()

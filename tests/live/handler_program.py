"""A program with handlers, run by the tests: says in a file what it does, and works until it is told to go on.

Beside the file is a directory: a message `wait` is worked on until there is a file `go` in it. `mode` is read by the
tests of `lakemq worker`.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import lakemq

PLACE = Path(os.environ["HANDLER_PLACE"])
TOPIC = os.environ["HANDLER_TOPIC"]
VERSION = 1


def say(*words):
    with (PLACE / "said.txt").open("a") as file:
        file.write(" ".join(map(str, (os.getpid(), *words))) + "\n")


def wait_for_go():
    deadline = time.monotonic() + 60
    while not (PLACE / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def handle(message):
    say("begun", message.body.decode())
    if message.body == b"wait":
        wait_for_go()
    say("done", message.body.decode())


async def handle_async(message):
    say("begun", message.body.decode())
    try:
        while message.body == b"wait" and not (PLACE / "go").exists():
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        say("cancelled", message.body.decode())
        raise
    say("done", message.body.decode())


def blocking_app(**options):
    client = lakemq.connect(os.environ["LAKEMQ_URL"], app="shop", ack_linger_ms=10)
    client.handler(TOPIC, group="g", **options)(handle)
    return client


def asyncio_app():
    client = lakemq.aio.connect(os.environ["LAKEMQ_URL"], app="shop", ack_linger_ms=10)
    client.handler(TOPIC, group="g")(handle_async)
    return client


def threaded_asyncio_app():
    client = lakemq.aio.connect(os.environ["LAKEMQ_URL"], app="shop", ack_linger_ms=10)
    client.handler(TOPIC, group="g")(handle)
    return client


def no_handlers():
    return lakemq.connect(os.environ["LAKEMQ_URL"], app="shop")


number = 5


def say_when_told(is_told):
    """So that a test knows that its signal has come."""

    def watch():
        while not is_told():
            time.sleep(0.002)
        say("told")

    threading.Thread(target=watch, daemon=True).start()


async def run_async(client, shutdown_timeout):
    async with client:
        say_when_told(lambda: any(one._is_stopping for one in client._serving))
        await client.run(shutdown_timeout=shutdown_timeout)
    say("ended")


def main():
    kind, shutdown_timeout = sys.argv[1:]
    if kind == "blocking":
        with blocking_app() as client:
            sign = client._stop
            say_when_told(lambda: client._stop is not sign and client._stop.is_set)
            client.run(shutdown_timeout=shutdown_timeout)
        say("ended")
    else:
        app = asyncio_app() if kind == "asyncio" else threaded_asyncio_app()
        asyncio.run(run_async(app, shutdown_timeout))


if __name__ == "__main__":
    main()

"""A client on a system that is not Linux: what is only there is taken away before LakeMQ is loaded, then it is used.

python portable_client.py URL TOPIC [OUTBOX]
"""

import importlib.abc
import os
import select
import signal
import socket
import sys

LINUX_ONLY = {"fcntl", "resource", "uvloop", "pwd", "grp", "termios", "syslog", "lakemq._hot", "lakemq._poll"}
LINUX_ONLY |= {"lakemq._sync", "lakemq._columns"}
CALLS = (
    "eventfd",
    "fork",
    "sched_yield",
    "O_DIRECTORY",
    "O_CLOEXEC",
    "sched_getaffinity",
    "posix_fadvise",
    "posix_fallocate",
    "pwritev",
    "preadv",
    "fdatasync",
)


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in LINUX_ONLY:
            raise ModuleNotFoundError(f"No module named {name!r}, as on another system", name=name)


def _missing(_):
    raise AttributeError("not on this system")


def be_elsewhere():
    for name in LINUX_ONLY:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing())
    for name in CALLS:
        if hasattr(os, name):
            delattr(os, name)
    socket.socket.sendmsg = property(_missing)  # as on Windows
    for module, name in ((select, "epoll"), (select, "poll"), (signal, "SIGHUP")):
        if hasattr(module, name):
            delattr(module, name)


def check_blocking(lakemq, url, topic, outbox):
    options = {"outbox": outbox} if outbox else {}
    with lakemq.connect(url, app="shop", compression="zlib", **options) as mq:
        receipts = [mq.send(topic, {"number": number}, key="c-7") for number in range(5)]
        assert [one.offset for one in receipts] == list(range(5)), receipts
        mq.send_soon(topic, "batched", key="c-7").result(30)
        with mq.consumer(topic, group="billing") as consumer:
            found = []
            while len(found) < 6:
                found += consumer.receive(10, timeout=10)
            assert [one.json()["number"] for one in found[:5]] == list(range(5))
            assert found[5].text() == "batched"


async def check_asyncio(lakemq, url, topic):
    async with lakemq.aio.connect(url, app="shop") as mq:
        await mq.send(topic, "paid", key="c-8")
        async with mq.consumer(topic, group="billing") as consumer:
            (message,) = await consumer.receive(10, timeout=10)
            assert message.text() == "paid"


def main():
    be_elsewhere()
    import asyncio

    import lakemq

    url, topic, *outbox = sys.argv[1:]
    check_blocking(lakemq, url, topic, outbox[0] if outbox else None)
    asyncio.run(check_asyncio(lakemq, url, f"{topic}-asyncio"))
    loaded = LINUX_ONLY & set(sys.modules)
    assert not loaded, loaded
    assert not [name for name in sys.modules if name.startswith(("lakemq.broker", "lakemq.world"))], "the client alone"


if __name__ == "__main__":
    main()

"""The connection between Spark and a Python worker: nothing that is sent waits for an acknowledgement.

Spark leaves Nagle's algorithm on at both ends. So the last bytes of a task wait until those before them have been
acknowledged, and the second piece of the next task waits for the first; the other end's kernel delays just that by
40 ms. A worker can end both: it sends at once, and acknowledges what has come so far.
"""

import os
import socket
import stat
from typing import Any

_FILES = "/dev/fd"  # those that this process has open
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_ACKNOWLEDGE = getattr(socket, "TCP_QUICKACK", None)  # Linux alone has it, and forgets it after a while


class SentToWorkers:
    """What Spark sends to a worker in the first piece of a task: being read there is the moment to acknowledge it."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        hurry()


def hurry() -> None:
    """Send at once from now on, and acknowledge now. Nothing happens where the connection is not TCP."""
    try:
        names = os.listdir(_FILES)
    except OSError:  # no such directory on this system: tasks wait as they would without us
        return
    for name in names:
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _hurry(int(name))
        except OSError:  # closed meanwhile, as the directory itself is
            continue


def _hurry(number: int) -> None:
    one = socket.socket(fileno=number)
    try:
        if one.family in _INTERNET and one.type == socket.SOCK_STREAM:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _ACKNOWLEDGE is not None:
                one.setsockopt(socket.IPPROTO_TCP, _ACKNOWLEDGE, 1)
    finally:
        one.detach()  # it is not ours to close

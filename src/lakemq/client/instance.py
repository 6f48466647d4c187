"""The name of this program among those of its host, for the trace: which of them sent or received a message."""

import os
import secrets

_made: tuple[int, str] = (0, "")


def instance_name() -> str:
    """The process's number, and a few letters that tell it from others of that number: in containers many have 1."""
    global _made
    if _made[0] != os.getpid():  # also after a fork
        _made = os.getpid(), f"{os.getpid()}.{secrets.token_hex(2)}"
    return _made[1]

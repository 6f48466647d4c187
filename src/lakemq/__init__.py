"""LakeMQ: a message broker in Python whose archive is a lake that Spark reads.

`connect` gives a client, `aio.connect` one for asyncio. Every error that LakeMQ raises is a name here, too:
`lakemq.SendTimeoutError`, and `lakemq.LakeMQError` for all of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lakemq.version import VERSION

if TYPE_CHECKING:
    from lakemq import aio
    from lakemq.client.blocking import Client, connect
    from lakemq.client.consuming import Consumer, Reader
    from lakemq.client.delivery import Delivery
    from lakemq.client.errors import *  # noqa: F403
    from lakemq.client.handlers import Settle
    from lakemq.client.outgoing import Message
    from lakemq.client.receipt import Receipt, SendReport
    from lakemq.errors import *  # noqa: F403
    from lakemq.errors import LakeMQError

__version__ = VERSION

__all__ = [
    "Client",
    "Consumer",
    "Delivery",
    "LakeMQError",
    "Message",
    "Reader",
    "Receipt",
    "SendReport",
    "Settle",
    "__version__",
    "aio",
    "connect",
]

# Loaded when first asked for: `lakemq --help` needs none of them.
_HOMES = {
    "Client": "lakemq.client.blocking",
    "Consumer": "lakemq.client.consuming",
    "Delivery": "lakemq.client.delivery",
    "LakeMQError": "lakemq.errors",
    "Message": "lakemq.client.outgoing",
    "Reader": "lakemq.client.consuming",
    "Receipt": "lakemq.client.receipt",
    "SendReport": "lakemq.client.receipt",
    "Settle": "lakemq.client.handlers",
    "connect": "lakemq.client.blocking",
}


_ERROR_HOMES = ("lakemq.errors", "lakemq.client.errors")


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("lakemq.aio")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name.endswith("Error"):
        errors = _errors()
        if name in errors:
            return errors[name]
    raise AttributeError(f"module 'lakemq' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The whole of what users import from here, loaded or not."""
    return sorted({*__all__, *_errors()})


def _errors() -> dict[str, Any]:
    """All errors by name, those of the broker and those of the client."""
    from lakemq.errors import LakeMQError

    modules = [vars(importlib.import_module(home)) for home in _ERROR_HOMES]
    names = {name: value for module in modules for name, value in module.items()}
    return {name: kind for name, kind in names.items() if isinstance(kind, type) and issubclass(kind, LakeMQError)}

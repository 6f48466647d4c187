"""LakeMQ: a message broker in Python whose archive is a lake that Spark reads."""

import importlib
from typing import TYPE_CHECKING, Any

from lakemq.version import VERSION

if TYPE_CHECKING:
    from lakemq import aio
    from lakemq.client.blocking import Client, connect
    from lakemq.client.consuming import Consumer, Reader
    from lakemq.client.delivery import Delivery
    from lakemq.client.handlers import Settle
    from lakemq.client.outgoing import Message
    from lakemq.client.receipt import Receipt, SendReport
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


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("lakemq.aio")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lakemq' has no attribute {name!r}")

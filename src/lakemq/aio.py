"""The asyncio client: `lakemq.aio.connect()`; the names are those of the blocking one."""

from lakemq.client.aio import AsyncClient, connect
from lakemq.client.aio_consuming import AsyncConsumer, AsyncReader
from lakemq.client.delivery import Delivery
from lakemq.client.outgoing import Message
from lakemq.client.receipt import Receipt, SendReport

__all__ = ["AsyncClient", "AsyncConsumer", "AsyncReader", "Delivery", "Message", "Receipt", "SendReport", "connect"]

"""Administration for the asyncio client: the same calls, in a thread."""

import asyncio
from typing import Any

from lakemq.client.admin import AdminClient, Json, Policy


class AsyncAdmin:
    """AdminClient with its calls in a thread, so that they can be awaited."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def call(self, method: str, path: str, body: Json = None) -> Json:
        """See `AdminClient.call`."""
        return await asyncio.to_thread(self._admin.call, method, path, body)

    async def ensure_topic(self, name: str, *, partitions: int = 1, type: str = "normal", **more: Any) -> Json:
        """See `AdminClient.ensure_topic`."""
        return await asyncio.to_thread(self._admin.ensure_topic, name, partitions=partitions, type=type, **more)

    async def create_app(self, name: str, **more: Any) -> Json:
        """See `AdminClient.create_app`."""
        return await asyncio.to_thread(self._admin.create_app, name, **more)

    async def subscribe(
        self, topic: str, app: str, *, producer: Policy = False, consumer: Policy = False, **more: Any
    ) -> Json:
        """See `AdminClient.subscribe`."""
        return await asyncio.to_thread(self._admin.subscribe, topic, app, producer=producer, consumer=consumer, **more)

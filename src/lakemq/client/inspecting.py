"""What brokers know, asked for page by page and put together. Pure steps over the core."""

import json
from dataclasses import replace
from typing import Any

from lakemq.client.address import Address
from lakemq.client.core import SHARED, Core
from lakemq.client.promise import Steps
from lakemq.client.router import broker_of
from lakemq.errors import SerializationError, from_status
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.own import Inspect

DELIVERIES = "deliveries"
PAGES_MAX = 100_000  # a broker that never comes to an end is not believed


def inspect(core: Core, what: str, topic: str, count: int) -> Steps[dict[str, Any]]:
    """All pages as one. The deliveries of a topic are put together from all brokers, each of which knows its own."""
    session = yield from core.reach()
    addresses = [session.address]
    app = core.config.app
    if what == DELIVERIES:
        found = yield core.ask(session, FetchCluster((), app), core.now_ms + core.config.timeout_ms)
        addresses = [broker_of(one, session.address).address for one in found.brokers] or addresses
    pages: list[dict[str, Any]] = []
    for address in addresses:
        pages += yield from _pages(core, address, Inspect(what, topic, app, "", count))
    return _joined(pages)


def _pages(core: Core, address: Address, wish: Inspect) -> Steps[list[dict[str, Any]]]:
    pages: list[dict[str, Any]] = []
    after = ""
    for _ in range(PAGES_MAX):
        deadline_ms = core.now_ms + core.config.timeout_ms
        session = yield from core.connected(address, SHARED, deadline_ms)
        ack = yield core.ask(session, replace(wish, after=after), deadline_ms)
        if ack.code:
            raise from_status(ack.code, f"{wish.what} {wish.topic}")
        try:
            page = json.loads(ack.body)
        except ValueError:
            page = None
        if not isinstance(page, dict):
            raise SerializationError(f"{address} answered INSPECT with something that is no page")
        pages.append(page)
        after = ack.next
        if not after:
            break
    return pages


def _joined(pages: list[dict[str, Any]]) -> dict[str, Any]:
    """Lists of all pages one after the other; apps, and in them partitions, that come several times as one."""
    whole: dict[str, Any] = {}
    for page in pages:
        for name, value in page.items():
            if name == "apps":
                _add(whole.setdefault("apps", []), value, "app")
            elif isinstance(value, list):
                whole.setdefault(name, []).extend(value)
            else:
                whole[name] = value
    for app in whole.get("apps", ()):
        app["partitions"].sort(key=lambda one: one["partition"])
    return whole


def _add(known: list[dict[str, Any]], more: list[dict[str, Any]], key: str) -> None:
    by_key = {one[key]: one for one in known}
    for one in more:
        found = by_key.get(one[key])
        if found is None:
            known.append(one)
            by_key[one[key]] = one
            continue
        for name, value in one.items():
            if name == "partitions":
                _add(found[name], value, "partition")
            elif isinstance(value, list):
                found[name].extend(value)
            else:
                found[name] = value

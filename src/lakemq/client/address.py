"""Where brokers are: the URL a user gives, taken apart.

`lakemq://host:port[,host:port…]` names brokers to begin with; `embedded:` and `embedded:///directory` ask for a broker
inside this process.
"""

from typing import NamedTuple

from lakemq.errors import BadParameterError

PORT_DEFAULT = 50088
SCHEME = "lakemq://"
EMBEDDED = "embedded:"


class Address(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


EMBEDDED_ADDRESS = Address("embedded", 0)


class ServerUrl(NamedTuple):
    """What a URL says; `directory` is None for an embedded broker that keeps everything in memory."""

    addresses: tuple[Address, ...]
    is_embedded: bool = False
    directory: str | None = None


def parse_url(url: str | None) -> ServerUrl:
    """The URL taken apart; None asks for a broker inside the process."""
    if url is None or url == EMBEDDED:
        return ServerUrl((EMBEDDED_ADDRESS,), is_embedded=True)
    if url.startswith(EMBEDDED):
        directory = url.removeprefix(EMBEDDED).removeprefix("//")
        return ServerUrl((EMBEDDED_ADDRESS,), is_embedded=True, directory=directory or None)
    if not url.startswith(SCHEME):
        raise BadParameterError(f"{url!r} is not a URL such as lakemq://host:{PORT_DEFAULT}, or embedded:")
    places = url.removeprefix(SCHEME).rstrip("/")
    return ServerUrl(tuple(dict.fromkeys(_address(place, url) for place in places.split(","))))


def _address(place: str, url: str) -> Address:
    if place.startswith("["):  # an IPv6 address, which has colons of its own
        host, bracket, rest = place[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        is_wrong = not bracket or colon not in ("", ":")
    else:
        host, colon, port = place.partition(":")
        is_wrong = False
    if is_wrong or not host or (colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise BadParameterError(f"{place!r} in {url!r} is not host or host:port")
    return Address(host, int(port) if colon else PORT_DEFAULT)

"""The checks of `lakemq doctor`: each looks at one thing and says whether it is good, worth a thought, or bad."""

import http.client
import importlib.util
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from lakemq.cli.options import Chosen, settings
from lakemq.config import Settings
from lakemq.errors import LakeMQError

_SECONDS = 2.0
_FREE_BYTES = 2 << 30  # one segment of a strict broker, and as much again
_FILES = 4096
_SKEW_SECONDS = 5
_JAVA = 17
# Only those that something here uses: an extra for what is planned helps nobody yet.
_EXTRAS = {"spark": "pyspark", "sql": "sqlalchemy", "xa": "transaction"}


class Finding(NamedTuple):
    """One thing, as it is."""

    check: str
    state: Literal["good", "note", "bad"]
    detail: str
    fix: str = ""


def examine(said: Chosen) -> list[Finding]:
    """All of them; one that cannot be made is a finding, too."""
    findings: list[Finding] = []
    for check in (_python, _compiled, _uvloop, _java, _extras):
        findings += check()
    try:
        found = settings()
    except LakeMQError as error:
        return [*findings, Finding("settings", "bad", str(error), "lakemq config check lakemq.toml")]
    findings += [Finding("settings", "good", "they can be used"), *_disk(found), *_files()]
    findings += _broker(said)
    return findings


def _python() -> Iterator[Finding]:
    is_good = sys.version_info >= (3, 11)
    yield Finding(
        "python", "good" if is_good else "bad", platform.python_version(), "" if is_good else "use 3.11 or newer"
    )


def _compiled() -> Iterator[Finding]:
    if all(importlib.util.find_spec(f"lakemq.{name}") is not None for name in ("_hot", "_poll")):
        yield Finding("compiled twin", "good", "the hot loops run in C, and so does the poller")
    else:
        yield Finding(
            "compiled twin", "note", "not built: all works, slower", "install a C compiler, then LakeMQ again"
        )


def _uvloop() -> Iterator[Finding]:
    if _is_installed("uvloop"):
        yield Finding("uvloop", "good", "installed")
    else:
        yield Finding("uvloop", "note", "not installed: all works, slower", "pip install uvloop")


def _java() -> Iterator[Finding]:
    fix = f"for Spark only: install Java {_JAVA}; Debian: openjdk-{_JAVA}-jre-headless"
    java = shutil.which("java")
    if java is None:
        yield Finding("java", "note", "not found", fix)
        return
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("java", "note", f"{java} does not run: {error}", fix)
        return
    line = (done.stderr or done.stdout).partition("\n")[0]
    number = line.partition('"')[2].partition(".")[0].partition('"')[0]
    is_good = number.isdigit() and int(number) >= _JAVA
    yield Finding("java", "good" if is_good else "note", line or "it does not say which", "" if is_good else fix)


def _extras() -> Iterator[Finding]:
    for extra, module in _EXTRAS.items():
        if _is_installed(module):
            yield Finding(f"extra {extra}", "good", f"{module} is there")
        else:
            yield Finding(f"extra {extra}", "note", f"{module} is not installed", f"pip install 'lakemq[{extra}]'")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of what is above it
        return False


def _disk(found: Settings) -> Iterator[Finding]:
    place = found.server.data.absolute()
    while not place.exists():
        place = place.parent
    free_bytes = shutil.disk_usage(place).free
    is_good = free_bytes >= _FREE_BYTES
    fix = "" if is_good else "free some, shorten retention, or put server.data elsewhere"
    yield Finding("disk", "good" if is_good else "bad", f"{free_bytes / (1 << 30):.1f} GiB free at {place}", fix)


def _files() -> Iterator[Finding]:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    is_good = hard == resource.RLIM_INFINITY or hard >= _FILES
    shown = "no limit" if hard == resource.RLIM_INFINITY else str(hard)
    fix = "" if is_good else f"allow {_FILES} or more: ulimit -n, LimitNOFILE="
    yield Finding("open files", "good" if is_good else "note", shown, fix)


def _broker(said: Chosen) -> Iterator[Finding]:
    checks: tuple[Callable[[Chosen], Iterator[Finding]], ...] = (_clients_port, _operators_port)
    for check in checks:
        try:
            yield from check(said)
        except LakeMQError as error:
            yield Finding(check.__name__.strip("_").replace("_", " "), "bad", str(error))


def _clients_port(said: Chosen) -> Iterator[Finding]:
    from lakemq.client.address import parse_url

    for address in parse_url(said.server_url()).addresses:
        try:
            with socket.create_connection((address.host, address.port), _SECONDS):
                yield Finding("clients port", "good", f"{address} takes connections")
        except OSError as error:
            yield Finding("clients port", "note", f"{address}: {error.strerror or error}", "lakemq dev, or --server")


def _operators_port(said: Chosen) -> Iterator[Finding]:
    url = said.admin_url()
    parts = urlsplit(url)
    try:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
    except ValueError as error:
        yield Finding("operators port", "bad", f"{url}: {error}", "--admin http://127.0.0.1:50090")
        return
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read(1 << 16).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        yield Finding("operators port", "note", f"{url}: {error}", "lakemq dev, or --admin")
        return
    finally:
        connection.close()
    if answer.status == http.HTTPStatus.OK:
        yield Finding("operators port", "good", f"{url} is ready")
    else:
        yield Finding("operators port", "bad", f"{url} is not ready: {text[:300]}", "lakemq broker show")
    yield from _clock(answer.getheader("date"))


def _clock(date: str | None) -> Iterator[Finding]:
    try:
        skew = abs(parsedate_to_datetime(date or "").timestamp() - time.time())
    except ValueError:
        return
    is_good = skew < _SKEW_SECONDS
    fix = "" if is_good else "set the clocks by NTP: due times and retention go by them"
    yield Finding("clock", "good" if is_good else "bad", f"{skew:.0f} s from the broker's", fix)

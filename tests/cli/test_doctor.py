"""`lakemq doctor`: each thing is looked at, whatever the others are like."""

import re
import socket
import tomllib
from pathlib import Path

from fix_admin import admin, served
from fix_cli import lakemq
from lakemq.cli.examining import _EXTRAS

__all__ = ["admin", "lakemq", "served"]

ROOT = Path(__file__).parents[2]


def rows_of(done):
    return {row["check"]: row for row in done.json}


def test_without_a_broker_it_says_how_to_start_one(lakemq):
    done = lakemq("doctor", "-o", "json", "--server", "lakemq://127.0.0.1:1", "--admin", "http://127.0.0.1:1")
    rows = rows_of(done)
    assert done.code == 0
    assert rows["python"]["state"] == "good"
    assert rows["settings"]["state"] == "good"
    assert {"compiled twin", "uvloop", "java", "extra spark", "disk", "open files"} <= set(rows)
    assert "lakemq dev" in rows["clients port"]["fix"]
    assert "lakemq dev" in rows["operators port"]["fix"]


def test_it_names_only_extras_that_something_uses(lakemq):
    """An extra for what is planned (zookeeper, otel) would be installed for nothing."""
    rows = rows_of(lakemq("doctor", "-o", "json", "--server", "lakemq://127.0.0.1:1", "--admin", "http://127.0.0.1:1"))
    named = {name.removeprefix("extra ") for name in rows if name.startswith("extra ")}
    assert named == {"spark", "sql", "xa"}
    assert named <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    code = "".join(path.read_text() for path in (ROOT / "src" / "lakemq").rglob("*.py") if path.name != "examining.py")
    for module in _EXTRAS.values():
        assert re.search(rf'(?:import|from) {module}\b|import_module\("{module}"\)', code), module


def test_a_broker_that_is_ready_is_good_and_so_is_its_clock(lakemq, admin):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"lakemq://127.0.0.1:{server.getsockname()[1]}"
        rows = rows_of(lakemq("doctor", "-o", "json", "--server", url, "--admin", admin.url))
    assert {rows[name]["state"] for name in ("clients port", "operators port", "clock")} == {"good"}


def test_a_broker_that_is_not_ready_is_bad(lakemq, admin):
    admin.good("PUT", "/v1/broker", {"writable": False})
    done = lakemq("doctor", "-o", "json", "--server", "lakemq://127.0.0.1:1", "--admin", admin.url)
    assert (done.code, rows_of(done)["operators port"]["state"]) == (1, "bad")


def test_wrong_settings_are_bad(lakemq, tmp_path):
    (tmp_path / "lakemq.toml").write_text("[server]\nprot = 1\n")
    done = lakemq("doctor", "-o", "json")
    assert (done.code, rows_of(done)["settings"]["state"]) == (1, "bad")


def test_wrong_urls_are_bad_not_a_traceback(lakemq):
    done = lakemq("doctor", "-o", "json", "--server", "x", "--admin", "http://x:y")
    assert done.code == 1
    assert {row["state"] for row in done.json if row["check"].endswith("port")} == {"bad"}


def test_for_people_it_is_a_table(lakemq):
    lines = lakemq("doctor", "--server", "lakemq://127.0.0.1:1", "--admin", "http://127.0.0.1:1").out.splitlines()
    assert lines[0].split() == ["check", "state", "detail", "fix"]

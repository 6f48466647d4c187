"""docs/client.md is true: its programs run one after the other, and its table of settings is the code's."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest

import lakemq
from fix_live import STRICT, start_broker
from lakemq.client.admin import AdminClient
from lakemq.client.config import ClientConfig, Settings
from lakemq.testing.broker import TestBroker

PAGE = (Path(__file__).parent.parent / "docs" / "client.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def needs_http(block):
    return "admin_url" in block


def run(block, names):
    """As a module of its own would; a failure is shown with the line on the page."""
    line = PAGE[: PAGE.index(block)].count("\n")
    exec(compile("\n" * line + block, "docs/client.md", "exec"), names)


class Yours:
    """What stands for the user's functions, and remembers what they got."""

    def __init__(self):
        self.charged = []
        self.saved = []

    def charge(self, *order):
        self.charged.append(order)

    def save(self, *what):
        self.saved.append(what)

    def names(self):
        return {"charge": self.charge, "save": self.save, "is_closing_time": lambda: len(self.charged) > 2}


def test_the_programs_run_one_after_the_other(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yours = Yours()
    with TestBroker() as broker:
        monkeypatch.setattr(lakemq, "connect", lambda url, **settings: broker.connect(**settings))
        aio_connect = lakemq.aio.connect

        def connect(url, **settings):  # the broker's own way comes by here, too
            return aio_connect(url, **settings) if "connector" in settings else broker.aio_connect(**settings)

        monkeypatch.setattr(lakemq.aio, "connect", connect)
        names = yours.names()
        for block in BLOCKS:
            if not needs_http(block):
                run(block, names)
        names["mq"].close()
    assert len(yours.charged) > 3  # the loop, the careful one, the asynchronous one
    assert len(yours.saved) > 4
    assert (tmp_path / "positions.json").exists()
    assert (tmp_path / "outbox").is_dir()


@pytest.mark.live
def test_the_program_for_administration_runs_against_a_broker(monkeypatch, tmp_path):
    (block,) = filter(needs_http, BLOCKS)
    with monkeypatch.context() as patch:
        for name in ("LAKEMQ_URL", "LAKEMQ_APP", "LAKEMQ_TOKEN"):
            patch.delenv(name, raising=False)
        broker = start_broker(tmp_path, mode=STRICT)
        try:
            (tmp_path / ".lakemq").symlink_to(broker.data)
            patch.chdir(tmp_path)
            token = _prepare(broker)
            patch.setenv("LAKEMQ_TOKEN", token)
            here = block.replace("127.0.0.1:50088", f"127.0.0.1:{broker.port}")
            exec(here.replace("127.0.0.1:50090", f"127.0.0.1:{broker.admin_port}"), {"lakemq": lakemq})
        finally:
            broker.stop()


def _prepare(broker):
    """An app with a token, made as an operator would."""
    admin = AdminClient(f"http://127.0.0.1:{broker.admin_port}", broker.admin_token)
    admin.create_app("shop")
    return admin.create_token("shop")["token"]


def test_every_setting_is_in_the_table_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| [^|]+ \|$", PAGE.partition("\n## Settings\n")[2], re.MULTILINE)
    said = dict(rows)
    default = ClientConfig()
    for name in get_type_hints(Settings):
        value = getattr(default, name)
        assert said[name] == ("–" if value == "" else str(value)), name
    others = {"timeout", "acks", "compression", "namespace", "region", "selector"}
    assert set(said) - set(get_type_hints(Settings)) == others

"""As whom the archive runs: as the broker is set, unless somebody says otherwise. No Spark is needed to find out."""

import pytest

from fix_live import live_broker, start_broker  # noqa: F401 - a fixture
from lakemq.cli.archiving import _archive_server
from lakemq.cli.options import Chosen
from lakemq.pipeline.archive_plan import as_archive
from lakemq.pipeline.archiving import ARCHIVE_APP
from lakemq.pipeline.options import Server

pytestmark = pytest.mark.live


@pytest.fixture
def set_broker(tmp_path):
    """A broker whose settings name another app."""
    settings = tmp_path / "lakemq.toml"
    settings.write_text('[archive]\napp = "copier"\n')
    broker = start_broker(tmp_path / "broker", options=("--config", str(settings)))
    yield broker
    broker.stop()


def url_of(broker):
    return f"lakemq://127.0.0.1:{broker.port}"


def test_it_is_the_app_that_the_broker_waits_for(set_broker):
    assert as_archive(Server(url_of(set_broker), ARCHIVE_APP), ARCHIVE_APP).app == "copier"
    assert as_archive(Server(url_of(set_broker), "mine"), ARCHIVE_APP).app == "mine", "somebody has said as whom"


def test_a_broker_that_is_set_to_nothing_else_has_the_usual_one(live_broker):  # noqa: F811
    assert as_archive(Server(url_of(live_broker), ARCHIVE_APP), ARCHIVE_APP).app == ARCHIVE_APP


def test_the_command_line_goes_by_the_settings_of_its_directory_and_by_the_broker(set_broker, tmp_path, monkeypatch):
    said = Chosen(server=url_of(set_broker))
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.delenv("LAKEMQ_ARCHIVE__APP", raising=False)
    assert _archive_server(said).app == "copier"
    monkeypatch.setenv("LAKEMQ_ARCHIVE__APP", "other")
    assert _archive_server(said).app == "other"

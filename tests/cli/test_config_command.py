"""`lakemq config`: a file that is written can be used, and never over another."""

import re
import tomllib

import pytest

from fix_cli import lakemq
from lakemq.cli.config_text import TEXTS, TITLES
from lakemq.config import KEYS, SECTIONS, load

__all__ = ["lakemq"]


def test_the_file_that_is_written_changes_nothing_and_names_everything(lakemq, tmp_path):
    done = lakemq("config", "init")
    assert (done.code, done.out) == (0, "")
    text = (tmp_path / "lakemq.toml").read_text()
    assert load(file=tmp_path / "lakemq.toml", environment={}).values == load(environment={}).values
    assert set(tomllib.loads(text)) == set(SECTIONS)
    for key in KEYS.values():
        assert key.is_secret or f"# {key.name} =" in text


def test_each_line_of_it_can_be_taken_into_use(lakemq, tmp_path):
    lakemq("config", "init", "a.toml")
    lines = (tmp_path / "a.toml").read_text().splitlines()
    used = [re.sub(r"^# (?=[a-z_]+ = )", "", line) for line in lines]
    (tmp_path / "b.toml").write_text("\n".join(used))
    settings = load(file=tmp_path / "b.toml", environment={})
    assert settings.values == load(environment={}).values
    assert len([origin for origin in settings.origins.values() if origin.endswith("b.toml")]) >= len(KEYS) - 6


def test_every_setting_is_explained():
    assert {path for path, key in KEYS.items() if not key.is_secret} == set(TEXTS)
    assert set(SECTIONS) == set(TITLES)
    assert [path for path, text in TEXTS.items() if not text.endswith(".")] == []


def test_a_file_that_is_there_is_left_alone(lakemq, tmp_path):
    (tmp_path / "lakemq.toml").write_text("mine")
    done = lakemq("config", "init")
    assert done.code == 7
    assert "nothing was written" in done.err
    assert (tmp_path / "lakemq.toml").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told(lakemq):
    done = lakemq("config", "init", "no/such/directory.toml")
    assert done.code == 1
    assert "No such file or directory" in done.err


def test_show_says_what_would_be_used_and_why(lakemq, tmp_path, monkeypatch):
    (tmp_path / "lakemq.toml").write_text("[server]\nport = 7000\n")
    monkeypatch.setenv("LAKEMQ_LOG__LEVEL", "error")
    monkeypatch.setenv("LAKEMQ_ADMIN__TOKEN", "a-token-of-the-operators")
    rows = {row["setting"]: row for row in lakemq("config", "show", "--origin", "-o", "json").json}
    assert rows["server.port"] == {"setting": "server.port", "value": "7000", "origin": str(tmp_path / "lakemq.toml")}
    assert rows["log.level"]["origin"] == "environment LAKEMQ_LOG__LEVEL"
    assert rows["limits.topics_max"]["origin"] == "built-in"
    assert rows["admin.token"]["value"] == '"***"'
    lines = lakemq("config", "show").out.splitlines()
    assert "a-token" not in "".join(lines)
    assert ["server.port", "7000"] in [line.split() for line in lines]


def test_check_says_good_or_everything_that_is_not(lakemq, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("[server]\nport = 7000\n")
    assert lakemq("config", "check", file).code == 0
    file.write_text("[server]\nprot = 7000\nhost = 5\n")
    done = lakemq("config", "check", file)
    assert (done.code, done.out) == (2, "")
    assert "2 settings cannot be used" in done.err
    assert "did you mean 'port'?" in done.err
    assert lakemq("config", "check", tmp_path / "none.toml").code == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["dev", "--port", "70000"], "--port: a number from 0 to 65535"),
        (["dev", "--partitions", "0"], "--partitions"),
        (["dev", "--log-format", "xml"], "one of auto, text, json"),
        (["broker", "start", "--config", "none.toml"], "none.toml"),
        (["broker", "start", "--port", "x"], "--port"),
    ],
)
def test_a_broker_is_not_started_with_wrong_settings(lakemq, tmp_path, arguments, word):
    done = lakemq(*arguments)
    assert done.code == 2
    assert word in done.err
    assert not (tmp_path / ".lakemq").exists()


def test_a_variable_that_is_not_ours_stops_a_start(lakemq, tmp_path, monkeypatch):
    monkeypatch.setenv("LAKEMQ_SERVER__PROT", "5")
    done = lakemq("dev")
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert "did you mean 'port'?" in done.err

"""The options of every command: where they may stand, and what stands in for them."""

import pytest

from lakemq.cli import options
from lakemq.cli.failure import CommandError
from lakemq.cli.options import Chosen, moved_ahead
from lakemq.config import ConfigError

TOKEN = "a-token-of-the-operators"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """An empty directory and an environment that says nothing."""
    monkeypatch.chdir(tmp_path)
    for name in list(options.os.environ):
        if name.startswith("LAKEMQ_"):
            monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "moved"),
    [
        (["topic", "ls", "-o", "json"], ["-o", "json", "topic", "ls"]),
        (["topic", "ls", "-ojson"], ["-ojson", "topic", "ls"]),
        (["topic", "--output=jsonl", "ls"], ["--output=jsonl", "topic", "ls"]),
        (["send", "t", "x", "--app", "shop", "--key", "k"], ["--app", "shop", "send", "t", "x", "--key", "k"]),
        (["send", "t", "--", "-o", "json"], ["send", "t", "--", "-o", "json"]),
        (["send", "t", "-o"], ["send", "t", "-o"]),
        (["send", "t", "-offset"], ["send", "t", "-offset"]),
        ([], []),
    ],
)
def test_common_options_are_moved_ahead_and_nothing_else_is(said, moved):
    assert moved_ahead(said) == moved


def test_without_anything_said_the_broker_is_the_one_here():
    assert Chosen().server_url() == "lakemq://127.0.0.1:50088"
    assert Chosen().admin_url() == "http://127.0.0.1:50090"
    assert Chosen().admin_token() == ""


def test_the_settings_of_this_directory_say_where_the_broker_is(alone):
    (alone / "lakemq.toml").write_text('[server]\nhost = "0.0.0.0"\nport = 7000\n[admin]\nhost = "::"\nport = 7001\n')
    assert Chosen().server_url() == "lakemq://127.0.0.1:7000"
    assert Chosen().admin_url() == "http://[::1]:7001"


def test_what_is_said_counts_more(alone):
    (alone / "lakemq.toml").write_text("[server]\nport = 7000\n")
    assert Chosen(server="lakemq://a:1").server_url() == "lakemq://a:1"
    assert Chosen(admin="http://b:2", server="lakemq://a:1").admin_url() == "http://b:2"


def test_operators_ask_where_clients_connect_unless_they_say_otherwise():
    assert Chosen(server="lakemq://a:1,b:2").admin_url() == "http://a:50090"


def test_settings_that_are_wrong_are_told(alone):
    (alone / "lakemq.toml").write_text("[server]\nprot = 7000\n")
    with pytest.raises(ConfigError, match="did you mean 'port'"):
        Chosen().server_url()


def test_the_token_is_found_beside_the_data(alone):
    (alone / ".lakemq").mkdir()
    (alone / ".lakemq" / "admin-token").write_text(TOKEN + "\n")
    assert Chosen().admin_token() == TOKEN
    assert Chosen(admin="http://localhost:5").admin_token() == TOKEN
    assert Chosen(server="lakemq://127.0.0.1:5").admin_token() == TOKEN


def test_the_token_beside_the_data_is_not_sent_to_another_machine(alone):
    (alone / ".lakemq").mkdir()
    (alone / ".lakemq" / "admin-token").write_text(TOKEN)
    assert Chosen(admin="http://example.org:50090").admin_token() == ""
    assert Chosen(server="lakemq://example.org").admin_token() == ""


def test_a_token_that_was_set_is_used_everywhere(alone, monkeypatch):
    monkeypatch.setenv("LAKEMQ_ADMIN__TOKEN", TOKEN)
    assert Chosen(admin="http://example.org:50090").admin_token() == TOKEN
    monkeypatch.delenv("LAKEMQ_ADMIN__TOKEN")
    (alone / "token").write_text(TOKEN)
    monkeypatch.setenv("LAKEMQ_ADMIN__TOKEN_FILE", str(alone / "token"))
    assert Chosen(admin="http://example.org:50090").admin_token() == TOKEN


def test_a_token_that_cannot_be_read_is_told(alone):
    (alone / ".lakemq" / "admin-token").mkdir(parents=True)
    with pytest.raises(CommandError, match="cannot be read") as caught:
        Chosen().admin_token()
    assert caught.value.exit_code == 6

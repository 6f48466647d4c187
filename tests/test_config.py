"""Settings: their layers, their values, and what is said of those that cannot be."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from lakemq.broker.config import ArchiveConfig, BrokerConfig
from lakemq.broker.limits import BrokerLimits
from lakemq.config import BUILT_IN, KEYS, ConfigError, Settings, load, shown
from lakemq.delivery.delays import DelayLimits
from lakemq.delivery.transactions import TransactionLimits
from lakemq.serve import ServeConfig
from lakemq.storage.config import StorageConfig
from lakemq.storage.retention import RetentionPolicy


def from_text(tmp_path, text, **more):
    file = tmp_path / "settings.toml"
    file.write_text(text)
    return load(file=file, environment={}, **more)


def problems_of(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value.problems


def test_nothing_said_is_what_is_built_in():
    settings = load(environment={})
    assert settings.serve_config() == ServeConfig()
    assert set(settings.origins.values()) == {BUILT_IN}


def test_every_field_that_an_operator_decides_is_a_key():
    kinds = {
        "broker": BrokerConfig,
        "limits": BrokerLimits,
        "storage": StorageConfig,
        "delays": DelayLimits,
        "transactions": TransactionLimits,
        "archive": ArchiveConfig,
    }
    for section, kind in kinds.items():
        left_out = {"retention", "limits", "delays", "transactions", "sync_policy", "group_ids", "owns_metadata"}
        left_out |= {"archive", "cluster_id"}
        assert {f"{section}.{one.name}" for one in fields(kind) if one.name not in left_out} <= set(KEYS)


def test_a_file_sets_what_it_names(tmp_path):
    text = """
        [server]
        data = "/var/lib/lakemq"
        port = 7000
        [broker]
        creates_missing = true
        long_poll_max_ms = "10s"
        [limits]
        frame_bytes_max = "1MiB"
        [storage]
        segment_bytes = 1073741824
        sync_every_ms = "5ms"
        [retention]
        age_ms = "7d"
        [admin]
        host = "0.0.0.0"
        token_file = "/run/secrets/token"
        [log]
        format = "json"
    """
    settings = from_text(tmp_path, text)
    config = settings.serve_config()
    assert (config.data, config.port) == (Path("/var/lib/lakemq"), 7000)
    assert config.broker.creates_missing is True
    assert config.broker.long_poll_max_ms == 10_000
    assert config.broker.limits.frame_bytes_max == 1 << 20
    assert config.storage.segment_bytes == 1 << 30
    assert config.storage.sync_policy.every_ms == 5
    assert config.broker.retention == RetentionPolicy(age_ms=7 * 86_400_000)
    assert settings.admin.token_file == "/run/secrets/token"
    assert settings.log.format == "json"
    assert settings.origins["server.port"] == str(tmp_path / "settings.toml")
    assert settings.origins["server.host"] == BUILT_IN


def test_flag_before_environment_before_file_before_directory_before_built_in(tmp_path):
    (tmp_path / "lakemq.toml").write_text("[server]\nport = 1\nhost = 'a'\n[log]\nlevel = 'error'\n")
    file = tmp_path / "other.toml"
    file.write_text("[server]\nport = 2\nhost = 'b'\n")

    def port(**more):
        return load(directory=tmp_path, **{"environment": {}, **more}).values["server.port"]

    assert port() == 1
    assert port(file=file) == 2
    assert port(file=file, environment={"LAKEMQ_SERVER__PORT": "3"}) == 3
    assert port(file=file, environment={"LAKEMQ_SERVER__PORT": "3"}, flags={"server.port": 4}) == 4
    assert port(flags={"server.port": None}) == 1
    assert port(flags={"server.port": 0}) == 0
    assert load(environment={}).values["server.port"] == 50088
    both = load(directory=tmp_path, file=file, environment={})
    assert (both.values["server.host"], both.values["log.level"]) == ("b", "error")


def test_the_origin_of_each_value_is_known(tmp_path):
    environment = {"LAKEMQ_SERVER__PORT": "3"}
    settings = load(environment=environment, flags={"server.host": "x"}, directory=tmp_path)
    assert settings.origins["server.port"] == "environment LAKEMQ_SERVER__PORT"
    assert settings.origins["server.host"] == "flag"


def test_other_variables_are_not_ours():
    environment = {"LAKEMQ_URL": "x", "LAKEMQ_TOKEN": "x", "PATH": "x", "lakemq_server__port": "x", "LAKEMQ": "x"}
    assert load(environment=environment).serve_config() == ServeConfig()


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("BROKER__CREATES_MISSING", "true", True),
        ("BROKER__CREATES_MISSING", "False", False),
        ("BROKER__LONG_POLL_MAX_MS", "500", 500),
        ("BROKER__LONG_POLL_MAX_MS", "2h", 7_200_000),
        ("LIMITS__FETCH_BYTES_MAX", "512KiB", 512 << 10),
        ("LIMITS__FETCH_BYTES_MAX", "2 MiB", 2 << 20),
        ("RETENTION__SIZE_BYTES", "1TiB", 1 << 40),
        ("RETENTION__SIZE_BYTES", "none", None),
        ("STORAGE__SYNC_EVERY_MS", "10", 10),
        ("SERVER__DATA", "/x", Path("/x")),
    ],
)
def test_a_variable_is_read_by_the_kind_of_its_key(path, text, value):
    settings = load(environment={f"LAKEMQ_{path}": text})
    assert settings.values[path.lower().replace("__", ".")] == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nprot = 1", "[server] has no key 'prot'; did you mean 'port'?"),
        ("[srever]\nport = 1", "there is no section [srever]; did you mean 'server'?"),
        ("[limits]\nport = 1", "[limits] has no key 'port'; it belongs into [server][admin]"),
        ("[broker]\nlong_poll = 1", "did you mean 'long_poll_max_ms'?"),
        ("[log]\nzzzzzz = 1", "[log] has no key 'zzzzzz'; there are format, level"),
        ("port = 1", "there is no section [port]"),
        ("server = 1", "server is a section"),
        ("[server]\nport = 'x'", "[server] port: a number, not 'x'"),
        ("[server]\nport = 70000", "[server] port: a number from 0 to 65535, not 70000"),
        ("[server]\nport = -1", "a number from 0 to 65535, not -1"),
        ("[server]\nport = true", "a number, not True"),
        ("[server]\nport = 1.5", "a number, not 1.5"),
        ("[server]\nport = [1]", "a number, not [1]"),
        ("[server]\nhost = 5", "[server] host: a text in quotes, not 5"),
        ("[server]\nhost = ''", "[server] host: may not be empty"),
        ("[server]\ndata = ''", "[server] data: may not be empty"),
        ("[broker]\ncreates_missing = 'yes'", "true or false, not 'yes'"),
        ("[broker]\ncreates_missing = 1", "true or false, not 1"),
        ("[broker]\nlong_poll_max_ms = '10 parsecs'", "a span of time such as 500ms"),
        ("[broker]\nlong_poll_max_ms = 0", "a number from 1"),
        ("[broker]\nassignor = 'odd'", "one of even, not 'odd'"),
        ("[limits]\nfetch_bytes_max = '64MB'", "a size such as 512KiB, 64MiB or 1GiB, not '64MB'"),
        ("[limits]\nfetch_bytes_max = '{0}'", "not '{0}'"),
        ("[log]\nformat = 'xml'", "one of auto, text, json, not 'xml'"),
        ("[admin]\ntoken = 'a-token-of-the-operators'", "a secret does not belong into a file"),
        ("[server", "not TOML"),
        ("[storage]\nsegment_bytes = '1MiB'", "a record must fit a segment"),
        ("[limits]\nframe_bytes_max = '1GiB'", "must fit a record"),
        ("[broker]\nslow_sync_ms = '1h'", "is more than broker.sync_limit_ms"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_what_would_be_right(tmp_path, text, said):
    (problem,) = problems_of(lambda: from_text(tmp_path, text))
    assert said in problem


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    text = "[server]\nprot = 1\nport = 'x'\n[logs]\n"
    found = problems_of(lambda: from_text(tmp_path, text))
    assert len(found) == 3


def test_a_secret_in_a_file_is_not_repeated(tmp_path):
    (problem,) = problems_of(lambda: from_text(tmp_path, "[admin]\ntoken = 'hunter2hunter2hunter2'"))
    assert "hunter2" not in problem


@pytest.mark.parametrize("token", ["short", "with a space in it, long", "ünïcödé-ünïcödé-ünïcödé"])
def test_a_token_that_is_none_is_refused_and_not_repeated(token):
    (problem,) = problems_of(lambda: load(environment={"LAKEMQ_ADMIN__TOKEN": token}))
    assert "LAKEMQ_ADMIN__TOKEN" in problem
    assert token not in problem


def test_a_token_is_taken_from_the_environment_and_never_shown():
    settings = load(environment={"LAKEMQ_ADMIN__TOKEN": "a-token-of-the-operators"})
    assert settings.admin.token == "a-token-of-the-operators"
    assert "a-token" not in repr(settings.admin)
    assert shown(KEYS["admin.token"], settings.admin.token) == '"***"'


def test_a_token_twice_is_one_too_many():
    environment = {"LAKEMQ_ADMIN__TOKEN": "a-token-of-the-operators", "LAKEMQ_ADMIN__TOKEN_FILE": "x"}
    assert "keep one" in problems_of(lambda: load(environment=environment))[0]


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("LAKEMQ_SERVER__PROT", "did you mean 'port'?"),
        ("LAKEMQ_SREVER__PORT", "did you mean 'server'?"),
        ("LAKEMQ_SERVER__PORT", "LAKEMQ_SERVER__PORT: a number, not 'x'"),
    ],
)
def test_a_wrong_variable_is_told_by_its_name(variable, said):
    (problem,) = problems_of(lambda: load(environment={variable: "x"}))
    assert said in problem
    assert problem.startswith(variable)


def test_a_wrong_flag_is_told_by_its_name():
    assert problems_of(lambda: load(environment={}, flags={"admin.port": 70000}))[0].startswith("--port: a number")


@pytest.mark.parametrize("kind", ["missing", "directory", "binary", "huge"])
def test_a_file_that_cannot_be_read_is_told(tmp_path, kind):
    file = tmp_path / "lakemq.toml"
    if kind == "directory":
        file.mkdir()
    elif kind == "binary":
        file.write_bytes(b"\xff\xfe")
    elif kind == "huge":
        file.write_bytes(b"#" * ((1 << 20) + 1))
    (problem,) = problems_of(lambda: load(file=file, environment={}))
    assert problem.startswith(str(file))


@pytest.mark.parametrize("path", KEYS)
def test_a_value_shown_reads_back_as_itself(tmp_path, path):
    key = KEYS[path]
    text = shown(key, key.default)
    if text == "none" or key.is_secret:
        return
    settings = from_text(tmp_path, f"[{key.section}]\n{key.name} = {text}\n")
    assert settings.values[path] == key.default


def test_a_text_is_shown_so_that_a_file_may_have_it(tmp_path):
    odd = 'C:\\data "quoted"'
    text = shown(KEYS["server.data"], Path(odd))
    assert from_text(tmp_path, f"[server]\ndata = {text}\n").values["server.data"] == Path(odd)


def test_what_was_loaded_cannot_be_changed():
    settings = load(environment={})
    assert isinstance(settings, Settings)
    with pytest.raises(AttributeError):
        settings.values = {}


def test_sizes_are_shown_in_the_largest_unit_they_are_whole_in():
    sizes = {path: shown(key, key.default) for path, key in KEYS.items() if key.is_size and key.default}
    assert sizes["storage.segment_bytes"] == '"1GiB"'
    assert all(re.fullmatch(r'"\d+[KMG]iB"', text) for text in sizes.values())


def test_syncs_by_number_alone_are_refused_since_the_last_messages_would_wait_for_ever():
    with pytest.raises(ConfigError, match="would wait for ever"):
        load(environment={"LAKEMQ_STORAGE__SYNC_EVERY_MESSAGES": "10"})


def test_the_archive_has_a_name_that_an_app_can_have(tmp_path):
    file = tmp_path / "lakemq.toml"
    file.write_text('[archive]\napp = "copier.lake"\nlag_bytes_max = "10GiB"\n', encoding="utf-8")
    made = load(file=file, environment={}).serve_config().broker.archive
    assert made == ArchiveConfig("copier.lake", 10 << 30)
    file.write_text('[archive]\napp = "two words"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="two words"):
        load(file=file, environment={})

"""How errors look on a terminal, and which exit code each gives."""

import re

import pytest

import lakemq as lakemq_package
from lakemq import errors
from lakemq.cli import failure
from lakemq.cli.failure import CommandError, describe, exit_code_of
from lakemq.client import errors as client_errors
from lakemq.config import ConfigError
from lakemq.errors import BadFrameError, BadParameterError, NameTakenError, TopicNotFoundError, UnknownNameError


def test_an_error_is_told_with_what_happened_why_and_what_to_do():
    assert describe(errors.DiskFullError("no room at /data")).splitlines() == [
        "error[LMQ-94]: no room at /data",
        f"  why   {errors.DiskFullError.cause}",
        f"  fix   {errors.DiskFullError.fix}",
        "  more  lakemq errors 94",
    ]


def test_a_topic_that_is_missing_is_mended_by_a_command():
    lines = describe(TopicNotFoundError("there is no topic 'orderz'")).splitlines()
    assert lines[0] == "error[LMQ-189]: there is no topic 'orderz'"
    assert "lakemq topic create" in lines[2]


def test_an_error_without_a_detail_is_told_by_its_cause_once():
    lines = describe(TopicNotFoundError()).splitlines()
    assert lines[0] == f"error[LMQ-189]: {TopicNotFoundError.cause}"
    assert not [line for line in lines if line.startswith("  why")]


def test_an_error_that_never_travels_has_no_number_and_nothing_to_look_up():
    text = describe(BadFrameError("length 3"))
    assert text.startswith("error: length 3\n")
    assert "lakemq errors" not in text


def test_an_error_below_a_numbered_one_has_its_number():
    assert describe(NameTakenError("orders")).startswith("error[LMQ-6]: ")


def test_a_detail_from_a_peer_cannot_command_the_terminal_or_forge_lines():
    text = describe(TopicNotFoundError("or\x1b[2Jders\r\nerror: all is well"))
    assert text.splitlines()[0] == "error[LMQ-189]: or?[2Jders error: all is well"
    assert "\x1b" not in text


def test_the_words_of_a_command_cannot_either():
    error = CommandError("a\x07b", why="c\nd", fix="e\x1b[0m\nf", code=6)
    assert describe(error).splitlines() == [
        "error[LMQ-6]: a?b",
        "  why   c d",
        "  fix   e?[0m?f",
        "  more  lakemq errors 6",
    ]


def test_one_wrong_setting_is_told_on_one_line_several_on_one_each():
    assert describe(ConfigError(["a is wrong"])).splitlines()[0] == "error: a is wrong"
    lines = describe(ConfigError(["a is wrong", "b is wrong"])).splitlines()
    assert lines[:3] == ["error: 2 settings cannot be used", "  why   a is wrong", "  why   b is wrong"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnknownError("x"), 1),
        (errors.DiskIOError("x"), 1),
        (NameTakenError("x"), 1),
        (BadFrameError("x"), 1),
        (BadParameterError("x"), 2),
        (ConfigError(["x"]), 2),
        (TopicNotFoundError("x"), 3),
        (UnknownNameError("x"), 3),
        (errors.ConsumerNotFoundError("x"), 3),
        (client_errors.BrokerUnreachableError("x"), 5),
        (client_errors.ConnectionLostError("x"), 5),
        (errors.ServiceUnavailableError("x"), 5),
        (errors.AuthenticationError("x"), 6),
        (errors.NoPermissionError("x"), 6),
        (errors.ProducerNotFoundError("x"), 6),
        (errors.TopicNotWritableError("x"), 6),
        (CommandError("x", 7), 7),
        (client_errors.RequestTimeoutError("x"), 124),
        (client_errors.SendTimeoutError("x"), 124),
        (errors.WriteTimeoutError("x"), 124),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_error_has_its_exit_code(error, code):
    assert exit_code_of(error) == code


def test_no_fix_has_a_placeholder_once_the_command_is_known(monkeypatch):
    monkeypatch.setattr(failure, "_known", dict(failure._known))
    failure.know(app="shop", group="shop.billing", topic="orders", role="--consumer")
    failure.know(app="shop")  # said again by the client that is opened: the group stays
    kinds = [getattr(lakemq_package, name) for name in dir(lakemq_package) if name.endswith("Error")]
    assert len(kinds) > 50
    for kind in kinds:
        told = failure.describe(kind("it happened"))
        assert not re.search(r"[{}<>]|\b(APP|TOPIC|GROUP|NAME)\b", told), told
    told = failure.describe(lakemq_package.NoPermissionError("no"))
    assert "lakemq app subscribe shop.billing orders --consumer" in told


def test_what_is_not_known_stays_a_placeholder():
    told = failure.filled("lakemq app subscribe {GROUP} {TOPIC} {ROLE}")
    assert "{" not in told

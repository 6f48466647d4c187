"""The log: one object per line or text, without tokens, and no line that somebody else wrote."""

import io
import json
import logging
import re

import pytest

from lakemq.world import log

TOKEN = "a-token-of-the-operators"


class Screen(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.fixture(autouse=True)
def restored():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def logger(format="auto", *, is_terminal=False, **more):
    """A logger, and where it writes to."""
    screen = Screen(is_terminal)
    log.configure(format, stream=screen, **more)
    return logging.getLogger("lakemq.broker"), screen


def test_without_a_terminal_each_line_is_an_object():
    ours, screen = logger(broker=7)
    ours.info("%d segments were dropped", 3)
    ours.warning("slow", extra={"event": "sync.slow", "topic": "orders", "duration_ms": 12})
    first, second = map(json.loads, screen.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("ts"))
    assert first == {"level": "info", "event": "lakemq.broker", "message": "3 segments were dropped", "broker": 7}
    assert second.items() >= {"level": "warning", "event": "sync.slow", "topic": "orders", "duration_ms": 12}.items()


def test_on_a_terminal_it_is_text_with_colours_for_trouble():
    ours, screen = logger(is_terminal=True)
    ours.info("good")
    ours.error("bad")
    good, bad = screen.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} info     good", good)
    assert "\x1b[31m" in bad


@pytest.mark.parametrize(("format", "is_terminal"), [("json", True), ("text", False)])
def test_the_form_can_be_chosen(format, is_terminal):
    ours, screen = logger(format, is_terminal=is_terminal)
    ours.error("bad")
    assert screen.getvalue().startswith("{") == (format == "json")
    assert "\x1b" not in screen.getvalue()


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_text_from_a_peer_stays_on_its_line_and_commands_no_terminal(format):
    ours, screen = logger(format)
    ours.warning("client says %s", "hello\n12:00:00.000 info     all is well\x1b[2J\r")
    lines = screen.getvalue().splitlines()
    assert "\x1b" not in screen.getvalue()
    assert "\r" not in screen.getvalue()
    assert len([line for line in lines if not line.startswith("    ")]) == 1


@pytest.mark.parametrize("format", ["json", "text"])
def test_tokens_are_blotted_out(format):
    ours, screen = logger(format, secrets=(TOKEN, ""))
    ours.warning("a request with %s", TOKEN, extra={"said": f"x {TOKEN}"})
    ours.warning("Authorization: Bearer abc.def")
    try:
        raise ValueError(f"bad {TOKEN}")
    except ValueError:
        ours.exception("failed")
    text = screen.getvalue()
    assert TOKEN not in text
    assert "abc.def" not in text
    assert log.BLOT in text


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_traceback_is_kept_with_its_entry(format):
    ours, screen = logger(format)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        ours.exception("a bug")
    assert "Traceback (most recent call last)" in screen.getvalue()
    lines = screen.getvalue().splitlines()
    assert len([line for line in lines if not line.startswith("    ")]) == 1


def test_what_is_below_the_level_is_left_out():
    ours, screen = logger(level="warning")
    ours.info("small talk")
    assert screen.getvalue() == ""


def test_a_second_configuration_replaces_the_first():
    _, first = logger()
    ours, second = logger()
    ours.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_the_news_of_the_http_server_are_not_ours():
    _, screen = logger()
    logging.getLogger("uvicorn.error").info("Started server process")
    assert screen.getvalue() == ""

"""`lakemq send`, `recv` and `tail`: what is wrong is found before anybody is asked."""

import pytest

from fix_cli import lakemq

__all__ = ["lakemq"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["send"], "TOPIC"),
        (["send", "orders"], "give one of BODY, --file and --stdin-lines"),
        (["send", "orders", "x", "--stdin-lines"], "give one of"),
        (["send", "orders", "x", "--file", "y"], "give one of"),
        (["send", "orders", "--stdin-lines", "--count", "2"], "--count belongs to BODY"),
        (["send", "orders", "x", "--count", "0"], "--count"),
        (["send", "orders", "x", "--acks", "all"], "'all' is not one of flush"),
        (["send", "orders", "x", "--header", "novalue"], "'novalue' is not"),
        (["send", "orders", "x", "--header", "=v"], "'=v' is not"),
        (["send", "orders", "x", "--partition", "-1"], "--partition"),
        (["send", "orders", "x", "--partition", "one"], "--partition"),
        (["send", "orders", "--file", "no-such-file"], "no-such-file: No such file"),
        (["send", "orders", "--file", "."], "Is a directory"),
        (["send", "orders", "x", "--delay", "soon"], "--delay"),
        (["send", "orders", "x", "--expire", "never"], "--expire"),
        (["send", "orders", "x", "--count", "2", "--uniq-id", "same"], "put {n} into it"),
        (["recv", "orders", "--tags", "a", "--filter", "b = 1"], "give tags or filter"),
        (["recv", "orders", "--filter", "total >"], "--filter"),
        (["tail", "orders", "--filter", "total >"], "--filter"),
        (["tail", "orders", "--partition", "-1"], "--partition"),
        (["recv"], "TOPIC"),
        (["recv", "orders", "--count", "-1"], "--count"),
        (["recv", "orders", "--timeout", "soon"], "'soon' is not a span of time"),
        (["tail", "orders", "--from", "yesterday"], "'yesterday' is not a moment"),
        (["tail", "orders", "--from", "-10x"], "--from"),
        (["bench", "send", "--acks", "all"], "'all' is not one of flush"),
        (["bench", "send", "--size", "0"], "--size"),
        (["bench", "recv", "--seconds", "0"], "--seconds"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_told_without_asking_a_broker(lakemq, arguments, word):
    done = lakemq("--server", "lakemq://127.0.0.1:1", *arguments)  # nobody listens there
    assert done.code == 2
    assert done.out == ""
    assert word in " ".join(done.err.split())


@pytest.mark.parametrize("arguments", [["send", "orders", "x"], ["recv", "orders"], ["tail", "orders"]], ids=" ".join)
def test_no_broker_is_exit_code_5(lakemq, arguments):
    done = lakemq(*arguments, "--server", "lakemq://127.0.0.1:1")
    assert (done.code, done.out) == (5, "")
    assert "lakemq dev" in done.err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "lakemq://a:b", "lakemq://"])
def test_a_url_that_is_none_is_wrong_usage(lakemq, url):
    done = lakemq("send", "orders", "x", "--server", url)
    assert done.code == 2
    assert "error[LMQ-6]" in done.err


def test_an_app_that_cannot_be_one_is_wrong_usage(lakemq):
    assert lakemq("send", "orders", "x", "--app", "a b", "--server", "lakemq://127.0.0.1:1").code == 2

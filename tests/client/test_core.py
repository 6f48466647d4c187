"""The small parts of the core: promises, timers, back-off, addresses, spans of time, settings."""

from datetime import UTC, datetime, timedelta

import pytest

from lakemq.client.address import Address, parse_url
from lakemq.client.backoff import Backoff, pause_ms
from lakemq.client.config import ClientConfig
from lakemq.client.duration import duration_ms, moment_ms
from lakemq.client.promise import Promise, resolved, start
from lakemq.client.timers import Timers
from lakemq.errors import BadParameterError


def test_steps_wait_for_promises_and_return():
    first, second = Promise(), Promise()

    def steps():
        one = yield first
        two = yield second
        return one + two

    done = start(steps())
    second.resolve(2)
    assert not done.is_done
    first.resolve(1)
    assert done.result() == 3


def test_an_error_comes_out_where_it_was_waited_for():
    promise = Promise()

    def steps():
        try:
            yield promise
        except ValueError:
            return "caught"

    done = start(steps())
    promise.fail(ValueError())
    assert done.result() == "caught"


def test_a_bug_goes_to_whoever_waits():
    def steps():
        yield resolved(1)
        raise ZeroDivisionError

    done = start(steps())
    assert isinstance(done.error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        done.result()


def test_the_first_outcome_counts_and_callbacks_are_called_in_order():
    promise, seen = Promise(), []
    promise.then(lambda p: seen.append("a"))
    promise.then(lambda p: seen.append("b"))
    promise.resolve(1)
    promise.fail(ValueError())
    promise.then(lambda p: seen.append("late"))
    assert promise.result() == 1
    assert seen == ["a", "b", "late"]


def test_timers_run_in_order_of_time():
    timers, seen = Timers(), []
    for due_ms in (30, 10, 20, 10):
        timers.at(due_ms, lambda due_ms=due_ms: seen.append(due_ms))
    assert timers.next_ms == 10
    timers.run(9)
    assert seen == []
    timers.run(20)
    assert seen == [10, 10, 20]
    timers.run(100)
    assert seen == [10, 10, 20, 30]
    assert timers.next_ms is None


def test_a_timer_that_sets_itself_again_does_not_hold_up_the_run():
    timers, seen = Timers(), []

    def again():
        seen.append(1)
        timers.at(5, again)

    timers.at(5, again)
    timers.run(5)
    assert seen == [1]
    timers.run(5)
    assert seen == [1, 1]


def test_pauses_double_up_to_a_cap_with_their_upper_half_left_to_chance():
    assert [pause_ms(n, 50, 3000, lambda: 0.0) for n in (1, 2, 3, 7, 8, 50)] == [25, 50, 100, 1500, 1500, 1500]
    assert [pause_ms(n, 50, 3000, lambda: 0.999) for n in (1, 2, 3, 7, 8)] == [50, 100, 200, 2999, 2999]


def test_a_place_that_failed_is_left_alone_for_a_while():
    backoff = Backoff(100, 1000, lambda: 0.0)
    assert backoff.left_ms(0) == 0
    backoff.failed(1000)
    assert backoff.left_ms(1000) == 50
    assert backoff.left_ms(1050) == 0
    backoff.failed(1050)
    assert backoff.left_ms(1050) == 100
    backoff.worked()
    assert backoff.left_ms(1050) == 0
    backoff.failed(2000)
    assert backoff.left_ms(2000) == 50


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("lakemq://a", [("a", 50088)]),
        ("lakemq://a:1", [("a", 1)]),
        ("lakemq://a:1,b,c:3/", [("a", 1), ("b", 50088), ("c", 3)]),
        ("lakemq://[::1]:7,[fe80::1]", [("::1", 7), ("fe80::1", 50088)]),
        ("lakemq://a,a", [("a", 50088)]),
    ],
)
def test_a_url_names_brokers(url, addresses):
    assert parse_url(url) == (tuple(Address(*one) for one in addresses), False, None)


@pytest.mark.parametrize(
    ("url", "directory"),
    [(None, None), ("embedded:", None), ("embedded:///var/mq", "/var/mq"), ("embedded:data", "data")],
)
def test_without_brokers_it_is_embedded(url, directory):
    server = parse_url(url)
    assert server.is_embedded
    assert server.directory == directory


@pytest.mark.parametrize(
    "url", ["", "http://a", "lakemq://", "lakemq://a:x", "lakemq://a:0", "lakemq://a,,b", "lakemq://[::1"]
)
def test_a_wrong_url_is_refused(url):
    with pytest.raises(BadParameterError, match=r"URL|host"):
        parse_url(url)


def test_an_address_is_written_as_in_a_url():
    assert str(Address("a", 1)) == "a:1"
    assert str(Address("::1", 1)) == "[::1]:1"


@pytest.mark.parametrize(
    ("span", "ms"),
    [
        ("200ms", 200),
        ("5s", 5000),
        ("1.5 s", 1500),
        ("10m", 600_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        (5, 5000),
        (0, 0),
        (0.25, 250),
        (timedelta(seconds=3), 3000),
    ],
)
def test_spans_of_time(span, ms):
    assert duration_ms(span) == ms


@pytest.mark.parametrize("span", ["5", "s", "-5s", "5 sec", "", -1, None, True, float("nan"), float("inf")])
def test_what_is_no_span_is_refused(span):
    with pytest.raises(BadParameterError):
        duration_ms(span)


def test_moments():
    assert moment_ms("-10m", 1_000_000) == 400_000
    assert moment_ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 0) == 1000
    assert moment_ms("1970-01-01T00:00:02+00:00", 0) == 2000
    with pytest.raises(BadParameterError):
        moment_ms("yesterday", 0)


def test_topics_and_apps_get_their_full_names():
    config = ClientConfig(app="shop", namespace="eu")
    assert config.full_topic("orders") == "eu.orders"
    assert config.full_topic("us.orders") == "us.orders"
    assert config.full_app("billing") == "shop.billing"
    assert config.full_app(None) == "shop"


@pytest.mark.parametrize("wrong", [{"app": "a b"}, {"acks": "all"}, {"tries": 0}, {"batch_count": 40_000}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(BadParameterError):
        ClientConfig(**wrong)

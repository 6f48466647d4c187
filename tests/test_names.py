"""Names are checked once, where they come in."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.errors import BadParameterError
from lakemq.names import NAME_BYTES_MAX, app_name, owner_of, split_namespace, topic_name

GOOD = ["orders", "o", "A-b_9", "ns.orders", "%RETRY%shop", "a|b", "/", "a/b", "-", "1.2", "x" * 127, "n." + "t" * 125]
BAD = {
    "nothing": "",
    "dot": ".",
    "dot first": ".orders",
    "dot last": "orders.",
    "two dots": "a.b.c",
    "two dots together": "a..b",
    "space": "a b",
    "space first": " a",
    "line end": "a\n",
    "line end in the middle": "a\nb",
    "nul": "a\x00",
    "letters of another script": "заказы",
    "digits of another script": "a١",
    "accent": "é",
    "half a surrogate pair": "a\ud800",
    "star": "*",
    "backslash": "a\\b",
    "colon": "a:b",
    "too long": "x" * 128,
    "too long with a dot": "n." + "t" * 126,
}

either = pytest.mark.parametrize("check", [topic_name, app_name])


@either
@pytest.mark.parametrize("text", GOOD)
def test_a_good_name_is_itself(check, text):
    assert check(text) == text


@either
@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_bad_name_is_a_bad_parameter(check, text):
    with pytest.raises(BadParameterError):
        check(text)


@either
@given(st.text(max_size=130))
@settings(max_examples=100, deadline=None)
def test_what_is_accepted_fits_a_one_byte_length_and_has_one_dot_at_most(check, text):
    try:
        name = check(text)
    except BadParameterError:
        return
    assert 1 <= len(name.encode()) <= NAME_BYTES_MAX
    assert name.count(".") <= 1
    assert name == name.strip()


def test_the_error_says_which_name_and_what_is_allowed():
    with pytest.raises(BadParameterError, match=r"'a b' is no topic name: use letters"):
        topic_name("a b")
    with pytest.raises(BadParameterError, match="the app name has 128 characters; 127 are allowed"):
        app_name("x" * 128)


@pytest.mark.parametrize(
    ("topic", "parts"), [("orders", ("", "orders")), ("shop.orders", ("shop", "orders")), ("1.2", ("1", "2"))]
)
def test_a_topic_is_its_namespace_and_its_bare_name(topic, parts):
    assert split_namespace(topic_name(topic)) == parts


@pytest.mark.parametrize(("app", "owner"), [("shop", "shop"), ("shop.left", "shop"), ("%RETRY%shop.a", "%RETRY%shop")])
def test_the_token_belongs_to_the_app_without_its_group(app, owner):
    assert owner_of(app_name(app)) == owner

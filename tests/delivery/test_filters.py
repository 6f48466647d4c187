"""Filters: what they want, what they say of a text that is none, and what a model says that is simpler than they."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakemq.attributes import decode_attributes
from lakemq.delivery.filters import FILTER_CHARACTERS_MAX, FILTER_NESTING_MAX, parse_filter
from lakemq.delivery.selection import select
from lakemq.envelope import pack
from lakemq.errors import BadParameterError, LakeMQError
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.record import attributes_of
from lakemq.storage.index import UNKNOWN_TAG, tag_hash

ORDER = {"color": "red", "size": "4", "region": "eu", "TAGS": "paid", "note": "it's", "is_test": "false", "x-id": "a.b"}


@pytest.mark.parametrize("text", ["", "  ", "*", " * "])
def test_no_filter_wants_all(text):
    wanted = parse_filter(text)
    assert wanted.is_all
    assert wanted.tag_hashes is None
    assert wanted.matches({})


@pytest.mark.parametrize(
    ("text", "tags", "is_wanted"),
    [
        ("paid", "paid", True),
        ("paid", "refund", False),
        ("paid", None, False),
        ("paid", "", False),
        ("paid||refund", "refund", True),
        (" paid | refund ", "paid", True),
        ("paid || refund", "paidrefund", False),
        ("paid", "new,paid", True),
        ("paid", "new, paid", True),
        ("paid", "new,paid-back", False),
        ("bezahlt-ü", "bezahlt-ü", True),
        ("AND", "AND", True),
        ("TRUE", "TRUE", True),
        ("a.b:c#1", "a.b:c#1", True),
    ],
)
def test_a_message_is_wanted_if_one_of_its_tags_is(text, tags, is_wanted):
    attributes = {} if tags is None else {"TAGS": tags}
    assert parse_filter(text).matches(attributes) is is_wanted


@pytest.mark.parametrize(
    "text",
    [
        "color = 'red'",
        "color='red'",
        "color <> 'blue' AND color != 'green'",
        "size = 4",
        "size = 4.0",
        "size > 3 AND size >= 4 AND size < 4.5 AND size <= 4e0",
        "size BETWEEN 4 AND 5",
        "size NOT BETWEEN 5 AND 6",
        "region IN ('us', 'eu')",
        "region NOT IN ('us')",
        "color LIKE 're%' AND color LIKE '%ed' AND color LIKE '%e%' AND color LIKE 'red' AND color LIKE '%'",
        "color NOT LIKE 'b%'",
        "missing IS NULL AND color IS NOT NULL",
        "note = 'it''s'",
        "is_test = FALSE",
        "NOT is_test = TRUE",
        "TAGS = 'paid' OR TAGS = 'refund'",
        "TAGS IN ('paid')",
        "\"x-id\" = 'a.b' and x-id = 'a.b'",
        "color = 'blue' OR color = 'red' AND size = 4",
        "NOT (color = 'blue' OR size = 5)",
        "missing = 1 OR size = 4",
        "color BETWEEN 'green' AND 'rust'",
        "(((TRUE)))",
    ],
)
def test_an_expression_wants_what_it_is_true_of(text):
    assert parse_filter(text).matches(ORDER)


@pytest.mark.parametrize(
    "text",
    [
        "color = 'Red'",
        "Color = 'red'",
        "size > 4",
        "color > 3",
        "NOT color > 3",
        "color = 4",
        "color <> 4",
        "missing = 'a'",
        "missing <> 'a'",
        "NOT missing = 'a'",
        "missing NOT IN ('a')",
        "size NOT IN (5, TRUE)",
        "color = 'red' AND missing = 1",
        "is_test",
        "color = 'red' AND FALSE",
        "TAGS <> 'paid'",
        "color = TRUE",
    ],
)
def test_what_is_false_or_unknown_is_not_wanted(text):
    assert not parse_filter(text).matches(ORDER)


def test_several_tags_in_an_expression():
    both = {"TAGS": "new,paid"}
    assert parse_filter("TAGS = 'paid' AND TAGS = 'new'").matches(both)
    assert not parse_filter("TAGS <> 'paid'").matches(both)
    assert parse_filter("TAGS <> 'refund'").matches(both)
    assert parse_filter("TAGS LIKE 'pa%'").matches(both)


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("paid ||", 8, "a tag"),
        ("|paid", 1, "a tag"),
        ("paid || 'x", 9, "a tag"),
        ("a b | c", 3, "between tags"),
        ("a = 1 || b = 2", 3, "between tags"),
        ("* | a", 1, "a tag"),
        ("a b", 3, "="),
        ("a,b", 2, "="),
        ("a = ", 5, "a string, a number"),
        ("a = b", 5, "a string, a number"),
        ("a == 1", 4, "a string, a number"),
        ("a > TRUE", 5, "a string or a number"),
        ("a = 'x", 5, "a closing quote"),
        ("a = 1 AND", 10, "the name of an attribute"),
        ("(a = 1", 7, "AND, OR or )"),
        ("a = 1)", 6, "AND, OR or the end"),
        ("a NOT = 1", 7, "IN, LIKE or BETWEEN"),
        ("a IN ()", 7, "a string, a number"),
        ("a IN (1", 8, ", or )"),
        ("a IS 1", 6, "NULL or NOT NULL"),
        ("a IS NOT 1", 10, "NULL"),
        ("a LIKE 5", 8, "a string such as"),
        ("a LIKE 'a%b'", 8, "% at its beginning or end"),
        ("a BETWEEN 1 OR 2", 13, "AND and the upper bound"),
        ("a BETWEEN 1 AND 'x'", 17, "a number"),
        ("a = 1 ; b", 7, "a name, a string, a number or an operator"),
        ("a = \ud800", 5, "text"),
        ("a = " + "1" * 41, 5, "a string, a number"),
        ("(" * (FILTER_NESTING_MAX + 1), FILTER_NESTING_MAX + 1, "levels"),
        ("NOT " * 100 + "a = 1", 4 * FILTER_NESTING_MAX + 1, "levels"),
    ],
)
def test_a_text_that_is_no_filter_is_refused_with_its_column(text, column, expected):
    with pytest.raises(BadParameterError) as caught:
        parse_filter(text)
    assert f"filter, column {column}: expected " in str(caught.value)
    assert expected in str(caught.value)


def test_a_filter_is_as_long_as_is_allowed_and_no_longer():
    text = "a = '" + "x" * (FILTER_CHARACTERS_MAX - 6) + "'"
    assert parse_filter(text).text == text
    with pytest.raises(BadParameterError, match="2048 are allowed"):
        parse_filter(text + " ")


def test_many_conditions_side_by_side_are_not_nested():
    text = " OR ".join("(a = 1)" for _ in range(150))
    assert parse_filter(text).matches({"a": "1"})


# The simplest thing that could be right: a tree evaluated without any thought of speed.

_NAMES = st.sampled_from(["a", "b", "TAGS"])
_TEXTS = st.sampled_from(["", "x", "y", "xy", "1", "true", "x,y", "é", "it's", "10", "1.5"])
_LITERALS = st.one_of(_TEXTS, st.sampled_from([0, 1, 10, 1.5, -1]), st.booleans())
_ORDERED = st.one_of(_TEXTS, st.sampled_from([0, 1, 10, 1.5, -1]))
_LEAVES = st.one_of(
    st.tuples(st.just("="), _NAMES, _LITERALS),
    st.tuples(st.just("<>"), _NAMES, _LITERALS),
    st.tuples(st.sampled_from(["<", "<=", ">", ">="]), _NAMES, _ORDERED),
    st.tuples(st.just("in"), _NAMES, st.lists(_LITERALS, min_size=1, max_size=3)),
    st.tuples(st.just("null"), _NAMES),
    st.tuples(st.just("like"), _NAMES, st.booleans(), st.sampled_from(["x", "y", "", "1"]), st.booleans()),
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2))
    ),
    max_leaves=12,
)
_ATTRIBUTES = st.dictionaries(_NAMES, _TEXTS)


def text_of(tree):
    match tree:
        case "not", inner:
            return f"NOT ({text_of(inner)})"
        case ("and" | "or") as word, parts:
            return "(" + f" {word.upper()} ".join(text_of(part) for part in parts) + ")"
        case "in", name, literals:
            return f"{name} IN ({', '.join(map(literal_text, literals))})"
        case "null", name:
            return f"{name} IS NULL"
        case "like", name, before, part, after:
            return f"{name} LIKE {literal_text('%' * before + part + '%' * after)}"
        case sign, name, literal:
            return f"{name} {sign} {literal_text(literal)}"


def literal_text(literal):
    return "'" + literal.replace("'", "''") + "'" if isinstance(literal, str) else str(literal).upper()


def truth(tree, attributes):
    match tree:
        case "not", inner:
            found = truth(inner, attributes)
            return None if found is None else not found
        case "and", parts:
            found = [truth(part, attributes) for part in parts]
            return False if False in found else None if None in found else True
        case "or", parts:
            found = [truth(part, attributes) for part in parts]
            return True if True in found else None if None in found else False
        case "null", name:
            return name not in attributes
        case "<>", name, literal:
            return truth(("not", ("=", name, literal)), attributes)
        case "in", name, literals:
            return truth(("or", [("=", name, literal) for literal in literals]), attributes)
    sign, name, *rest = tree
    if name not in attributes:
        return None
    values = [attributes[name]]
    if name == "TAGS" and "," in values[0]:
        values += values[0].split(",")
    found = [test(sign, value, rest) for value in values]
    return True if True in found else None if None in found else False


def test(sign, value, rest):
    if sign == "like":
        before, part, after = rest
        places = [at for at in range(len(value) + 1) if value.startswith(part, at)]
        return any((before or at == 0) and (after or at + len(part) == len(value)) for at in places)
    (literal,) = rest
    if isinstance(literal, bool):
        value = {"true": True, "false": False}.get(value)
    elif isinstance(literal, int | float):
        try:
            value = float(value)
        except ValueError:
            value = None
    if value is None:
        return None
    return {
        "=": value == literal,
        "<": value < literal,
        "<=": value <= literal,
        ">": value > literal,
        ">=": value >= literal,
    }[sign]


test.__test__ = False


@given(_TREES, st.lists(_ATTRIBUTES, min_size=1, max_size=8))
def test_an_expression_is_evaluated_as_the_model_does(tree, several):
    wanted = parse_filter(f"({text_of(tree)})")
    for attributes in several:
        assert wanted.matches(attributes) is (truth(tree, attributes) is True)


@given(st.text() | st.text(alphabet="a1 '\"()=<>!|,*%ANDORTinlike.-"))
@example("a = 1e999")
@example("a = .")
@example('""')
def test_any_text_is_a_filter_or_a_bad_parameter(text):
    try:
        wanted = parse_filter(text)
    except BadParameterError:
        return
    assert wanted.matches({"a": "1", "TAGS": "a"}) in (True, False)


@given(st.text(max_size=60))
def test_any_value_can_be_evaluated(value):
    for text in ("a > 1", "a = TRUE", "a < 'x'", "a LIKE '%x'", "a BETWEEN 1 AND 2", "a", "TAGS > 1"):
        assert parse_filter(text).matches({"a": value, "TAGS": value}) in (True, False)


def test_long_numbers_are_no_numbers():
    assert not parse_filter("a > 1").matches({"a": "9" * 10_000})


# Over stored messages

_CARRIED = st.one_of(
    st.builds(Message, body=st.binary(max_size=20), attributes=_ATTRIBUTES, business_id=st.sampled_from(["", "k"])),
    st.builds(
        BatchMessage,
        items=st.lists(st.builds(BatchItem, st.binary(max_size=5)), min_size=1, max_size=3).map(tuple),
        attributes=_ATTRIBUTES,
    ),
)


def stored(messages, first_index=5):
    """Their bytes with indexes in a row; with what each is."""
    data, rows, index = bytearray(), [], first_index
    for message in messages:
        count = len(message.items) if isinstance(message, BatchMessage) else 1
        start = len(data)
        data += pack(type(message)(**{name: getattr(message, name) for name in _names(message)}, index=index))
        rows.append((index, index + count, start, len(data), dict(message.attributes)))
        index += count
    return bytes(data), rows


def _names(message):
    own = ("items",) if isinstance(message, BatchMessage) else ("body",)
    return ("attributes", "business_id", *own)


def wanted_runs(wanted, data, count):
    return [tuple(picked[:4]) for picked in select(data, count, wanted, 0, 0).picked]


@given(st.sampled_from(["*", "x", "x | y", "é", "1||10", "a = 'x' OR b = 1", "TAGS = 'x'"]), st.lists(_CARRIED))
def test_runs_hold_just_what_is_wanted_of_stored_messages(text, messages):
    data, rows = stored(messages)
    wanted = parse_filter(text)
    runs = wanted_runs(wanted, data, len(rows))
    expected = [row[:4] for row in rows if wanted.matches(row[4])]
    joined = []
    for first, following, start, stop in expected:
        if joined and joined[-1][1] == first and joined[-1][3] == start:
            joined[-1] = (joined[-1][0], following, joined[-1][2], stop)
        else:
            joined.append((first, following, start, stop))
    assert runs == joined
    assert wanted_runs(wanted, memoryview(data), len(rows)) == runs  # what was decided before is decided alike


@given(st.sampled_from(["x", "x || y", "é", "TAGS = 'x'", "a = 'x' AND TAGS IN ('x', 'y')"]), st.lists(_CARRIED))
def test_what_the_hashes_leave_out_is_not_wanted(text, messages):
    """As the index has them; several tags in one text are "cannot tell" there."""
    data, rows = stored(messages)
    wanted = parse_filter(text)
    for _, _, start, _, attributes in rows:
        if wanted.matches(attributes):
            assert tag_hash(attributes_of(data, start)) in wanted.tag_hashes | {UNKNOWN_TAG}


@pytest.mark.parametrize(
    ("attributes", "is_wanted"),
    [
        (b"", False),
        (b"TAGS=paid", True),
        (b"a=1\nTAGS=paid\nb=2", True),
        (b"a=TAGS=paid", False),
        (b"XTAGS=paid", False),
        (b"TAGS = paid", True),
        (b"TAGS:paid", True),
        (b" TAGS=paid", True),
        (b"TAGS=refund\nTAGS=paid", True),
        (b"a=1\rTAGS=paid", True),
        (b"T\\u0041GS=paid", True),
        (b"TAGS=p\\u0061id", True),
        (b"TAGS=pai\\\nd", True),
        (b"TAGS=new,paid", True),
        (b"TAGS=paid ", False),
        (b"#TAGS=paid", False),
        (b"TAGS=\\uZZZZ", True),  # unreadable: delivered, not lost in silence
    ],
)
def test_tags_are_found_however_they_are_written(attributes, is_wanted):
    assert parse_filter("paid").matches_bytes(attributes) is is_wanted


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"a=x", b"a==", b"a=", b"a= x", b"a:x", b"a=x=y", b"a=b:"])))
def test_attributes_are_read_as_everywhere(lines):
    attributes = b"\n".join(lines)
    try:
        there = decode_attributes(attributes).get("a")
    except LakeMQError:
        return
    assert parse_filter("a IS NOT NULL").matches_bytes(attributes) is (there is not None)
    assert parse_filter("a = 'x' OR a = '=' OR a = 'b:'").matches_bytes(attributes) is (there in ("x", "=", "b:"))


def test_a_carrier_is_wanted_whole_or_not_at_all():
    items = tuple(BatchItem(b"x", attributes={"a": str(n)}) for n in range(3))
    data, _ = stored([BatchMessage(items=items, attributes={"TAGS": "paid"}), BatchMessage(items=items)], 0)
    assert [run[:2] for run in wanted_runs(parse_filter("paid"), data, 2)] == [(0, 3)]
    assert wanted_runs(parse_filter("a = 1"), data, 2) == []


@pytest.mark.parametrize("text", ["*", "paid"])
def test_a_run_ends_where_an_index_is_left_out(text):
    data = b"".join(pack(Message(index=index, attributes={"TAGS": "paid"})) for index in (3, 4, 9))
    size = len(data) // 3
    assert wanted_runs(parse_filter(text), data, 3) == [(3, 5, 0, 2 * size), (9, 10, 2 * size, 3 * size)]


def test_equal_texts_are_equal_filters():
    assert parse_filter("a = 1") == parse_filter("a = 1")
    assert hash(parse_filter("a")) == hash(parse_filter("a"))
    assert parse_filter("a") != parse_filter("b")

"""Attributes in Java's properties syntax: written as Java writes them, read as Java reads them."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemq.attributes import decode_attributes, encode_attributes
from lakemq.errors import BadParameterError, SerializationError
from wire.strategies import CHARACTERS

TEXTS = st.text(CHARACTERS, max_size=20)
MAPPINGS = st.dictionaries(TEXTS, TEXTS, max_size=6)

# ---- round trips ---------------------------------------------------------------------------------------------------


@given(MAPPINGS)
@settings(max_examples=300, deadline=None)
@example({"": ""})
@example({"": "v", "k": ""})
@example({" ": " ", "  ": "  "})
@example({"\\": "\\", "\\\\": "\\\\\\"})
@example({"#": "!", "!": "#"})
@example({"\n": "\r\n"})
@example({"\\u0041": "\\n"})
@example({"😀": "\U0010ffff"})
@example({"a\x85b": "\u2028\u2029\x0b\x1c\x1d\x1e"})
def test_any_mapping_comes_back(mapping):
    data = encode_attributes(mapping)
    back = decode_attributes(data)
    assert back == mapping
    assert list(back) == list(mapping)
    assert encode_attributes(back) == data


@given(MAPPINGS)
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_printable_ascii_with_one_line_per_entry(mapping):
    data = encode_attributes(mapping)
    assert all(byte == 0x0A or 0x20 <= byte <= 0x7E for byte in data)
    assert data.count(b"\n") == max(len(mapping) - 1, 0)


@given(st.text(CHARACTERS, max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused_and_what_was_read_can_be_written(text):
    try:
        mapping = decode_attributes(text.encode())
    except SerializationError:
        return
    assert decode_attributes(encode_attributes(mapping)) == mapping


@given(st.binary(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(data):
    try:
        decode_attributes(data)
    except SerializationError:
        return


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind):
    assert decode_attributes(kind(b"k=v")) == {"k": "v"}
    assert decode_attributes(kind(b"")) == {}


# ---- the writer ----------------------------------------------------------------------------------------------------

# Each line as java.util.Properties.store writes it.
WRITTEN = {
    "nothing": ({}, rb""),
    "plain": ({"k": "v"}, rb"k=v"),
    "empty value": ({"k": ""}, rb"k="),
    "empty key": ({"": "v"}, rb"=v"),
    "both empty": ({"": ""}, rb"="),
    "the example of the description": ({"a b": "c d", "x": "=中"}, b"a\\ b=c d\nx=\\=\\u4E2D"),
    "order kept": ({"z": "1", "a": "2", "m": "3"}, b"z=1\na=2\nm=3"),
    "every space of a key": ({"  a b ": "v"}, rb"\ \ a\ b\ =v"),
    "only the first space of a value": ({"k": "  a b "}, rb"k=\  a b "),
    "a value of one space": ({"k": " "}, rb"k=\ "),
    "separators and marks in a key": ({"a=b:c#d!e\\f": ""}, rb"a\=b\:c\#d\!e\\f="),
    "separators and marks in a value": ({"k": "a=b:c#d!e\\f"}, rb"k=a\=b\:c\#d\!e\\f"),
    "line ends": ({"a\nb": "c\r\nd"}, rb"a\nb=c\r\nd"),
    "tab and form feed": ({"a\tb": "c\fd"}, rb"a\tb=c\fd"),
    "a value that starts with a tab": ({"k": "\tv"}, rb"k=\tv"),
    "control characters": ({"k": "\x00\x01\x0b\x1f"}, rb"k=\u0000\u0001\u000B\u001F"),
    "the last of ascii": ({"k": "~\x7f\x80"}, rb"k=~\u007F\u0080"),
    "latin": ({"é": "ÿ"}, rb"\u00E9=\u00FF"),
    "upper-case digits": ({"k": "\uabcd\uffef"}, rb"k=\uABCD\uFFEF"),
    "two units": ({"k": "😀"}, rb"k=\uD83D\uDE00"),
    "the last character": ({"k": "\U0010ffff"}, rb"k=\uDBFF\uDFFF"),
    "unicode's own line ends": ({"k": "\x85\u2028"}, rb"k=\u0085\u2028"),
    "no-break space": ({"\xa0k": "\xa0v"}, rb"\u00A0k=\u00A0v"),
}


@pytest.mark.parametrize(("mapping", "data"), WRITTEN.values(), ids=WRITTEN)
def test_java_writes_the_same_bytes(mapping, data):
    assert encode_attributes(mapping) == data
    assert decode_attributes(data) == mapping


@pytest.mark.parametrize("mapping", [{"\ud800": ""}, {"k": "a\udc00"}, {"k": "\udc00\ud800"}])
def test_half_a_surrogate_pair_is_not_written(mapping):
    with pytest.raises(BadParameterError, match="surrogate"):
        encode_attributes(mapping)


# ---- the reader ----------------------------------------------------------------------------------------------------

READ = {
    # separators
    "equals": ("k=v", {"k": "v"}),
    "colon": ("k:v", {"k": "v"}),
    "space": ("k v", {"k": "v"}),
    "tab": ("k\tv", {"k": "v"}),
    "form feed": ("k\fv", {"k": "v"}),
    "blanks around equals": ("k \t = \f v", {"k": "v"}),
    "blanks around colon": ("k : v", {"k": "v"}),
    "blanks before the key": (" \t\fk=v", {"k": "v"}),
    "blanks after the value stay": ("k=v \t", {"k": "v \t"}),
    "one separator only": ("k==v", {"k": "=v"}),
    "colon after equals": ("k=:v", {"k": ":v"}),
    "equals after blanks and colon": ("k : = v", {"k": "= v"}),
    "escaped separators": (r"a\=b\:c\ d=v", {"a=b:c d": "v"}),
    "an escaped backslash before a separator": (r"k\\=v", {"k\\": "v"}),
    "three backslashes before a separator": (r"k\\\=v", {"k\\=v": ""}),
    "no-break space is no separator": ("a\xa0b=v", {"a\xa0b": "v"}),
    "vertical tab is no separator": ("a\x0bb=v", {"a\x0bb": "v"}),
    # without one or the other
    "key alone": ("k", {"k": ""}),
    "key and separator": ("k=", {"k": ""}),
    "key and blanks": ("k  ", {"k": ""}),
    "separator alone": ("=", {"": ""}),
    "value alone": ("=v", {"": "v"}),
    # lines
    "lf": ("a=1\nb=2", {"a": "1", "b": "2"}),
    "cr": ("a=1\rb=2", {"a": "1", "b": "2"}),
    "crlf": ("a=1\r\nb=2", {"a": "1", "b": "2"}),
    "lfcr": ("a=1\n\rb=2", {"a": "1", "b": "2"}),
    "line end at the end": ("a=1\n", {"a": "1"}),
    "blank lines": ("\n\n \t\n a=1\n\n\nb=2\n\n", {"a": "1", "b": "2"}),
    "unicode's line ends are not": ("a=1\x85\u2028b=2", {"a": "1\x85\u2028b=2"}),
    "blanks only": (" \t\f", {}),
    # comments
    "hash": ("# k=v", {}),
    "bang": ("! k=v", {}),
    "comment after blanks": ("  #c\n\t!c\nk=v", {"k": "v"}),
    "a mark later is none": ("k=v # c", {"k": "v # c"}),
    "a mark in a key is none": ("k#!=v", {"k#!": "v"}),
    "an escaped mark": ("\\#k=v\n\\!l=w", {"#k": "v", "!l": "w"}),
    "a comment does not go on": ("#c\\\nk=v", {"k": "v"}),
    # continuation
    "continued value": ("k=a\\\nb", {"k": "ab"}),
    "continued after cr": ("k=a\\\rb", {"k": "ab"}),
    "continued after crlf": ("k=a\\\r\nb", {"k": "ab"}),
    "continued twice": ("k=a\\\n  b\\\n\tc", {"k": "abc"}),
    "continued key": ("ke\\\n  y=v", {"key": "v"}),
    "continued separator": ("k\\\n = v", {"k": "v"}),
    "blanks before the backslash stay": ("k=a \\\n b", {"k": "a b"}),
    "two backslashes end the line": ("k=a\\\\\nb=2", {"k": "a\\", "b": "2"}),
    "three backslashes continue": ("k=a\\\\\\\nb", {"k": "a\\b"}),
    "four backslashes end the line": ("k=a\\\\\\\\\nb=2", {"k": "a\\\\", "b": "2"}),
    "a mark in a continuation is none": ("k=a\\\n#b", {"k": "a#b"}),
    "a blank continuation ends the line": ("k=a\\\n\nb=2", {"k": "a", "b": "2"}),
    "a blank continuation of blanks too": ("k=a\\\n  \nb=2", {"k": "a", "b": "2"}),
    "a backslash at the end": ("k=a\\", {"k": "a"}),
    "a backslash and a line end at the end": ("k=a\\\n", {"k": "a"}),
    "nothing continued by a comment": ("\\\n#c\nk=v", {"k": "v"}),
    "nothing continued by a blank line": ("\\\n \nk=v", {"k": "v"}),
    # escapes
    "short escapes": (r"k=\t\n\r\f", {"k": "\t\n\r\f"}),
    "unknown escapes lose the backslash": (r"\k=\v\b\a\z\"\'\0", {"k": "vbaz\"'0"}),
    "escaped backslash": (r"k=\\n", {"k": "\\n"}),
    "unit": (r"k=\u4e2d\u4E2D", {"k": "中中"}),
    "unit in a key": (r"\u006b=v", {"k": "v"}),
    "an escaped separator as a unit": (r"a\u003db=v", {"a=b": "v"}),
    "a leading blank as a unit": (r"k=\u0020v", {"k": " v"}),
    "a surrogate pair": (r"k=\uD83D\uDE00", {"k": "😀"}),
    "a high half": (r"k=a\uD83Db", {"k": "a\ufffdb"}),
    "a low half": (r"k=a\uDE00b", {"k": "a\ufffdb"}),
    "halves the wrong way round": (r"k=\uDE00\uD83D", {"k": "\ufffd\ufffd"}),
    "a half before a pair": (r"k=\uD83D\uD83D\uDE00", {"k": "\ufffd😀"}),
    "a unit on two lines": ("k=\\u00\\\n41x", {"k": "Ax"}),
    "digits after a unit": (r"k=\u00411", {"k": "A1"}),
    # what other writers leave raw
    "raw utf-8": ("ключ=中 é 😀", {"ключ": "中 é 😀"}),
    "raw marks in a value": ("k=a=b:c#d!e", {"k": "a=b:c#d!e"}),
    "raw control characters": ("k=\x00\x01\x7f", {"k": "\x00\x01\x7f"}),
    # keys that come twice
    "last wins": ("k=1\nl=2\nk=3", {"k": "3", "l": "2"}),
    "the same key written differently": ("k=1\n\\u006B : 2", {"k": "2"}),
}


@pytest.mark.parametrize(("text", "mapping"), READ.values(), ids=READ)
def test_java_reads_the_same_mapping(text, mapping):
    assert decode_attributes(text.encode()) == mapping


NOT_FOUR_DIGITS = ["", "1", "12", "123", "123g", " 123", "-123", "+123", "uuuu", "0x41", "12_4", "１２３４"]


@pytest.mark.parametrize("digits", NOT_FOUR_DIGITS)
def test_a_unit_without_four_digits_is_undecodable(digits):
    for text in (f"k=\\u{digits}", f"\\u{digits}=v"):
        with pytest.raises(SerializationError, match="hexadecimal"):
            decode_attributes(text.encode())


def test_a_unit_in_a_comment_is_not_looked_at():
    assert decode_attributes(rb"#\u") == {}


@pytest.mark.parametrize("data", [b"\xff", b"k=\xc3", b"k=\xed\xa0\x80", b"\xc0\x80=v", b"#\xff"])
def test_attributes_that_are_not_utf_8_are_undecodable(data):
    with pytest.raises(SerializationError, match="UTF-8"):
        decode_attributes(data)


SLOW_TO_READ = {
    "escaped blanks in a key": b"\\ " * 16383,
    "backslashes": b"\\" * 32766,
    "continuations": b"a\\\n" * 10922,
    "empty continuations": b"\\\n" * 16383,
    "units": b"\\u0041" * 5461,
    "separators": b"=" * 32767,
    "lines": b"\n" * 32767,
    "entries": b"a\n" * 16383,
    "half pairs": b"\\uD800" * 5461,
}


@pytest.mark.parametrize("data", SLOW_TO_READ.values(), ids=SLOW_TO_READ)
@pytest.mark.timeout(5)
def test_the_longest_attributes_are_read_in_no_time(data):
    decode_attributes(data[:32767])

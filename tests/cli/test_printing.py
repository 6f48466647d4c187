"""What commands print: aligned, plain, and nothing that a terminal would obey."""

from lakemq.cli.printing import aligned, iso, moment, printable, shown


def test_columns_are_as_wide_as_what_is_in_them_and_numbers_stand_right():
    rows = [{"name": "a", "lag": 5}, {"name": "long-name", "lag": 1000}, {"name": "b", "lag": None}]
    assert aligned(rows, ("name", "lag")) == [
        "name        lag",
        "a             5",
        "long-name  1000",
        "b             -",
    ]


def test_values_are_words():
    assert [shown(one) for one in (True, False, None, 1.25, [], ["a", "b"], {"x": 1}, {})] == [
        "yes",
        "no",
        "-",
        "1.2",
        "-",
        "a, b",
        "x=1",
        "-",
    ]


def test_what_commands_a_terminal_is_taken_out():
    assert shown("a\x1b[2Jb\n") == "a·[2Jb·"
    assert printable("grün") == "grün"


def test_times_that_cannot_be_are_numbers():
    assert iso(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert iso(1 << 62) == str(1 << 62)
    assert moment(1 << 62) == str(1 << 62)
    assert moment(1_700_000_000_123).endswith(".123")

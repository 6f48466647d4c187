import pytest

wording = pytest.importorskip("lakemq.pipeline.transforms.wording", reason="Spark needs pip install 'lakemq[spark]'")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (2.5, "2.5 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (1605, "1.6 s"),
        (59_940, "59.9 s"),
        (59_999, "60 s"),
        (60_000, "1 min"),
        (90_000, "1 min 30 s"),
        (3_599_999, "1 h"),
        (7_800_000, "2 h 10 min"),
        (86_400_000 * 1234, "1,234 d"),
        (-5, "-5 ms"),
    ],
)
def test_a_span_is_told_in_the_unit_that_suits_it(ms, text):
    assert wording.span_text(ms) == text

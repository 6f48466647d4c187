"""Of all that Spark says when something fails, the line that helps."""

import pytest

from lakemq.pipeline.spark_errors import told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Job aborted\n  lakemq.pipeline.errors.OptionError: no topic. See x\n\tat org.apache.Foo", "no topic. See x"),
        ("Traceback\nValueError: seven\nPy4JJavaError: An error occurred", "ValueError: seven"),
        ("\n  [SOME_CODE] first line.  \n== SQL ==\nselect", "[SOME_CODE] first line."),
        ("", "RuntimeError"),
    ],
    ids=["ours", "python", "java", "nothing"],
)
def test_the_line_that_matters_is_told(text, said):
    assert str(told(RuntimeError(text))).endswith(said)

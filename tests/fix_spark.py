"""A Spark session for tests, one for all that need it; skipped with the reason where Spark or Java is not there."""

import warnings

import pytest

MASTER = "local[2,4]"  # two cores; a task may fail three times
_SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # Frames of a few rows: compiling the queries would take longer than they do.
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def make_session():
    """The session that LakeMQ's own jobs use."""
    pytest.importorskip("pyspark", reason="needs the extra spark")
    from lakemq.pipeline.errors import SparkMissingError
    from lakemq.pipeline.session import session

    try:
        return session(MASTER, "tests", _SMALL)
    except SparkMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark():
    """One session for the whole run: starting one takes longer than most tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own
        made = make_session()
    yield made
    made.stop()

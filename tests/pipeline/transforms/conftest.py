"""The Spark session, and tables of the lake made of rows that are written out."""

import pytest

from fix_spark import spark

__all__ = ["spark"]


# The rows' module needs pyarrow, without which the tests are skipped: so it is not imported before one runs.


@pytest.fixture
def meta(spark):
    """Make a frame of `meta`: each row is a dict of what differs from an ordinary message."""
    from pipeline.transforms.lake_rows import META_COLUMNS, message

    return lambda *rows: spark.createDataFrame([message(**row) for row in rows], META_COLUMNS)


@pytest.fixture
def events(spark):
    """Make a frame of `events`: each row is a dict of what differs from an ordinary event."""
    from pipeline.transforms.lake_rows import EVENT_COLUMNS, event

    return lambda *rows: spark.createDataFrame([event(**row) for row in rows], EVENT_COLUMNS)


@pytest.fixture
def states(spark):
    from pipeline.transforms.lake_rows import STATE_COLUMNS, state

    return lambda *rows: spark.createDataFrame([state(**row) for row in rows], STATE_COLUMNS)

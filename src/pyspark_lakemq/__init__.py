"""What Spark finds by itself: every importable module `pyspark_…` with a `DefaultSource` is a data source.

Spark imports this in every look-up, also for other formats: it must be quick, and must not fail.
"""

from lakemq.pipeline.source import LakeMQSource as DefaultSource

__all__ = ["DefaultSource"]

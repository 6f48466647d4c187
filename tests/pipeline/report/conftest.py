"""The Spark session and the lake's tables, as the transforms' tests have them."""

from fix_spark import spark
from pipeline.transforms.conftest import events, meta

__all__ = ["events", "meta", "spark"]

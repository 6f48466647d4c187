"""LakeMQ: a message broker in Python whose archive is a lake that Spark reads."""

from lakemq.version import VERSION

__version__ = VERSION

__all__ = ["__version__"]

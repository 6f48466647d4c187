"""What tests of the pipeline share: a Spark session, a broker, and topics with known messages."""

import itertools

import pytest

import lakemq
from fix_live import live_broker, shown_stderr
from fix_spark import spark

__all__ = ["live_broker", "shown_stderr", "spark"]

_names = itertools.count()


@pytest.hookimpl(tryfirst=True)  # before xdist looks at groups
def pytest_collection_modifyitems(items):
    """All that use the session go to one process: a second session would take half the machine."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


class Topics:
    """A client of the broker that makes topics of its own for each test."""

    def __init__(self, broker):
        self.url = f"lakemq://127.0.0.1:{broker.port}"
        admin_url = f"http://127.0.0.1:{broker.admin_port}"
        self.mq = lakemq.connect(self.url, app="shop", admin_url=admin_url, admin_token=broker.admin_token)

    def make(self, partitions=2, **more):
        """A new topic's name."""
        name = f"t{next(_names)}"
        self.mq.admin.ensure_topic(name, partitions=partitions, **more)
        return name

    def fill(self, topic, count, first=0, key=lambda n: f"k{n % 7}", body=lambda n: b"%d" % n, **more):
        """Send numbered messages."""
        futures = [self.mq.send_soon(topic, body(n), key=key(n), **more) for n in range(first, first + count)]
        self.mq.flush()
        assert all(future.exception() is None for future in futures)

    def read(self, spark, **options):
        """A frame of the source."""
        return spark.read.format("lakemq").options(servers=self.url, **options).load()

    def lag(self, topic, group, app="spark"):
        """By partition, of a group of Spark's app."""
        with lakemq.connect(self.url, app=app) as mq:
            return [one.lag for one in mq.lag(topic, group)]


@pytest.fixture(scope="module")
def topics(live_broker):
    made = Topics(live_broker)
    yield made
    made.mq.close()

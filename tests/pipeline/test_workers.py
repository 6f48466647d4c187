"""Several workers on one machine, as the pipeline sees them: one broker."""

from collections import Counter

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import lakemq
from fix_live import STRICT, LiveBroker
from lakemq.client.admin import AdminClient
from lakemq.pipeline.archive_plan import told_positions
from lakemq.pipeline.archiving import ARCHIVE_APP, Archive, ArchiveSettings
from lakemq.pipeline.lake import Lake, verify
from lakemq.pipeline.options import Server
from lakemq.pipeline.views import open_views

WORKERS, PARTITIONS, COUNT, ACKED = 2, 4, 400, 30
TOKENS = {"shop": "a-token-for-the-shop", ARCHIVE_APP: "a-token-for-the-archive"}


@pytest.fixture
def shop(tmp_path):
    """A client of the app `shop`, whose topic is archived and has partitions at each worker."""
    broker = LiveBroker(tmp_path / "workers", mode=STRICT, options=("--workers", str(WORKERS))).start()
    try:
        admin = AdminClient(f"http://127.0.0.1:{broker.admin_port}", broker.admin_token)
        admin.ensure_topic("orders", partitions=PARTITIONS, is_archived=True)
        admin.create_app("shop")
        admin.subscribe("orders", "shop", producer=True, consumer=True, start="earliest")
        for app, token in TOKENS.items():
            admin.create_token(app, token=token)
        with lakemq.connect(f"lakemq://127.0.0.1:{broker.port}", app="shop", token=TOKENS["shop"]) as mq:
            yield broker, mq
    finally:
        broker.stop()


def test_the_partitions_of_all_workers_are_archived_and_asked_for_together(spark, shop, tmp_path):
    broker, mq = shop
    lake = str(tmp_path / "lake")
    server = Server(f"lakemq://127.0.0.1:{broker.port}", ARCHIVE_APP, TOKENS[ARCHIVE_APP])
    for number in range(COUNT):
        mq.send_soon("orders", b"%d" % number, partition=number % PARTITIONS)
    mq.flush("30s")
    acked = set()
    with mq.consumer("orders", auto_ack=False) as consumer:
        while len(acked) < ACKED:
            for message in consumer.receive(ACKED - len(acked)):
                message.ack()
                acked.add((message.partition, message.offset))
    assert Archive(spark, ArchiveSettings(server, lake)).run().messages == COUNT
    for number in range(COUNT, COUNT + PARTITIONS):  # live, and not archived
        mq.send("orders", b"%d" % number, partition=number % PARTITIONS)

    assert verify(Lake.open(lake), told_positions(server)).problems == []
    views = open_views(spark, server, lake)
    rows = views.topics["orders"].select("partition", "offset", "value").collect()
    assert sorted(int(row.value) for row in rows) == list(range(COUNT + PARTITIONS))
    assert Counter(row.partition for row in rows) == dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS + 1)
    states = views.deliveries.where("topic = 'orders' and `group` = 'shop'").collect()
    assert {(row.partition, row.offset) for row in states if row.state == "acked"} == acked
    assert len(states) == COUNT + PARTITIONS
    lags = {row.partition: row.lag for row in views.lag.where("`group` = 'shop'").collect()}
    assert sum(lags.values()) == COUNT + PARTITIONS - ACKED

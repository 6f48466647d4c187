"""What Prometheus is told, read back by its own parser."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fix_admin import InMemory, admin, served
from lakemq import operate
from lakemq.operate import Operated, reading_of
from lakemq.world.prometheus import Lag, exposition

__all__ = ["admin", "served"]


def families(data):
    return {family.name: family for family in text_string_to_metric_families(data.decode())}


def values(data, name):
    """By labels, in their order."""
    found = [family for family in text_string_to_metric_families(data.decode()) if name.startswith(family.name)]
    samples = [sample for family in found for sample in family.samples if sample.name == name]
    return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in samples}


@pytest.fixture
def broker():
    service = InMemory()
    for topic in ("orders", "clicks"):
        service.ask("create_topic", name=topic, partitions=2).result()
    service.ask("create_app", name="shop").result()
    service.ask("subscribe", topic="orders", app="shop", consumer={}, producer={}).result()
    metrics = service.broker.metrics
    metrics.messages_in.update(orders=5, clicks=2)
    metrics.bytes_in.update(orders=500)
    metrics.messages_out[("orders", "shop")] = 4
    metrics.bytes_out[("orders", "shop")] = 400
    metrics.settled[("orders", "shop", "ack")] = 3
    metrics.requests["PRODUCE_MESSAGE"] += 7
    metrics.errors[189] += 2
    metrics.capped["connections"] += 1
    metrics.syncs.add(3)
    metrics.syncs.add(9000)
    return service


def scrape(service, tmp_path):
    operated = Operated(service)
    lags = [lag for page in operated.lag_pages() for lag in page.result()]
    return exposition(operated.read().result(), lags, tmp_path)


def test_every_counter_and_gauge_is_there_by_its_name(broker, tmp_path):
    data = scrape(broker, tmp_path)
    assert {name for name in families(data) if not name.startswith("lakemq_")} == set()
    assert values(data, "lakemq_messages_in_total") == {("orders",): 5, ("clicks",): 2}
    assert values(data, "lakemq_bytes_in_total") == {("orders",): 500}
    assert values(data, "lakemq_messages_out_total") == {("shop", "orders"): 4}
    assert values(data, "lakemq_bytes_out_total") == {("shop", "orders"): 400}
    assert values(data, "lakemq_settled_total") == {("shop", "ack", "orders"): 3}
    assert values(data, "lakemq_requests_total") == {("PRODUCE_MESSAGE",): 7}
    assert values(data, "lakemq_errors_total") == {("189",): 2}
    assert values(data, "lakemq_capped_total") == {("connections",): 1}
    assert values(data, "lakemq_group_lag_messages") == {("shop", "orders"): 0}
    assert values(data, "lakemq_event_loop_lag_seconds") == {(): 0.25}
    assert values(data, "lakemq_topics") == {(): 2}
    assert values(data, "lakemq_partitions") == {(): 4}
    for name in ("disk_free_bytes", "resident_memory_bytes", "journal_bytes", "build_info"):
        ((_, value),) = values(data, f"lakemq_{name}").items()
        assert value > 0, name
    for name in ("connections", "parked_polls", "in_flight_bytes", "unsynced_bytes", "bugs_total"):
        assert values(data, f"lakemq_{name}") == {(): 0}, name


def test_syncs_are_a_histogram_whose_buckets_rise(broker, tmp_path):
    before = sum(broker.broker.metrics.syncs.counts)
    data = scrape(broker, tmp_path)
    family = families(data)["lakemq_sync_duration_seconds"]
    buckets = [(float(one.labels["le"]), one.value) for one in family.samples if one.name.endswith("_bucket")]
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[-1] == (float("inf"), before)
    assert dict(buckets)[5.0] == before - 1
    assert values(data, "lakemq_sync_duration_seconds_count") == {(): before}
    assert values(data, "lakemq_sync_duration_seconds_sum")[()] >= 9.003


def test_lag_counts_what_is_stored_and_not_acked(broker, tmp_path):
    broker.store("orders", 0, count=3)
    broker.store("orders", 1, count=2)
    assert values(scrape(broker, tmp_path), "lakemq_group_lag_messages") == {("shop", "orders"): 5}


def test_series_of_a_dropped_topic_vanish(broker, tmp_path):
    broker.ask("drop_topic", name="orders").result()
    broker.broker.metrics.messages_in["orders"] += 1  # a request that was still under way
    data = scrape(broker, tmp_path)
    assert b'"orders"' not in data
    assert values(data, "lakemq_messages_in_total") == {("clicks",): 2}


def test_series_of_a_group_that_is_gone_vanish(broker, tmp_path):
    broker.ask("unsubscribe", topic="orders", app="shop").result()
    data = scrape(broker, tmp_path)
    assert b'"shop"' not in data
    assert values(data, "lakemq_messages_in_total") == {("orders",): 5, ("clicks",): 2}


def test_many_groups_are_read_in_pages(broker, tmp_path, monkeypatch):
    monkeypatch.setattr(operate, "LAG_PARTITIONS_MAX", 3)
    for number in range(5):
        broker.ask("subscribe", topic="orders", app=f"shop.g{number}", consumer={}).result()
    pages = [page.result() for page in Operated(broker).lag_pages()]
    assert [len(page) for page in pages] == [2, 2, 2]
    assert {lag.group for page in pages for lag in page} == {"shop", *(f"shop.g{number}" for number in range(5))}


def test_a_group_that_goes_while_pages_are_read_is_left_out(broker):
    pages = Operated(broker).lag_pages()
    metadata = broker.broker.ledger.metadata
    (subscription,) = metadata.subscriptions.values()
    broker.ask("drop_topic", name="orders").result()
    assert operate.lags_of([subscription], broker.broker) == []
    assert [lag for page in pages for lag in page.result()] == []


def test_a_name_cannot_break_out_of_its_label(broker, tmp_path):
    reading = reading_of(broker.broker)
    data = exposition(reading, [Lag('a"} 1\nevil 2', "back\\slash", 3)], tmp_path)
    assert values(data, "lakemq_group_lag_messages") == {("back\\slash", 'a"} 1\nevil 2'): 3}
    assert "evil" not in families(data)


def test_a_directory_that_is_gone_has_no_room(broker, tmp_path):
    assert values(scrape(broker, tmp_path / "gone"), "lakemq_disk_free_bytes") == {(): 0}


def test_a_scrape_over_http_is_the_same(admin):
    admin.good("POST", "/v1/topics", {"name": "orders"})
    status, headers, data = admin.raw("GET", "/metrics", token="")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert values(data, "lakemq_topics") == {(): 1}

"""Several workers on one machine: whole brokers with one view of topics, apps and subscriptions."""

import contextlib
import http.client
import json
import os
import signal
import time

import pytest

import lakemq
from fix_live import STRICT, LiveBroker
from scripted.documented import Client, ClosedError
from scripted.documented_bytes import RefusedError

pytestmark = pytest.mark.live

WORKERS = 3
TOKEN = "a-token-for-the-shop"


def call(broker, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=20)
    headers = {"Authorization": f"Bearer {broker.admin_token}", "Content-Type": "application/json"}
    try:
        connection.request(method, f"/v1/{path}", None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def done(broker, method, path, body=None):
    status, answer = call(broker, method, path, body)
    assert status < 300, answer
    return answer


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    broker = LiveBroker(tmp_path_factory.mktemp("workers"), mode=STRICT, options=("--workers", str(WORKERS))).start()
    try:
        done(broker, "POST", "topics", {"name": "orders", "partitions": 2 * WORKERS})
        done(broker, "POST", "apps", {"name": "shop"})
        done(broker, "POST", "apps/shop/tokens", {"token": TOKEN})
        done(broker, "PUT", "subscriptions", {"topic": "orders", "app": "shop", "producer": {}, "consumer": {}})
        yield broker
    finally:
        broker.stop()


def ports_of(broker):
    return [one["port"] for one in json.loads((broker.directory / "ready.json").read_text())["workers"]]


def connect(broker, worker=0):
    return lakemq.connect(f"lakemq://127.0.0.1:{ports_of(broker)[worker]}", app="shop", token=TOKEN)


def test_every_worker_names_all_and_takes_its_share(workers):
    with connect(workers, WORKERS - 1) as mq:
        receipts = [mq.send("orders", b"%d" % n, partition=n) for n in range(2 * WORKERS)]
        assert [one.offset for one in receipts] == [0] * (2 * WORKERS)
        got = set()
        with mq.consumer("orders", prefetch=2 * WORKERS) as consumer:
            deadline = time.monotonic() + 30
            while len(got) < 2 * WORKERS and time.monotonic() < deadline:
                got |= {(one.partition, one.body) for one in consumer.receive(100, timeout="2s")}
        assert got == {(n, b"%d" % n) for n in range(2 * WORKERS)}


def test_operators_see_all_partitions_at_the_first_worker(workers):
    shown = done(workers, "GET", "topics/orders")
    assert [one["partition"] for one in shown["partition_offsets"]] == list(range(2 * WORKERS))
    lag = done(workers, "GET", "lag?topic=orders&app=shop")
    assert [one["partition"] for one in lag] == list(range(2 * WORKERS))
    plan = done(workers, "POST", "seek", {"topic": "orders", "app": "shop", "to": "earliest", "execute": True})
    assert [one["target"] for one in plan] == [0] * (2 * WORKERS)


def test_a_change_is_in_force_everywhere_when_it_is_answered(workers):
    for number in range(5):
        name = f"new-{number}"
        done(workers, "POST", "topics", {"name": name, "partitions": WORKERS})
        done(workers, "PUT", "subscriptions", {"topic": name, "app": "shop", "producer": {}})
        for worker in range(WORKERS):
            with connect(workers, worker) as mq:
                assert mq.send(name, b"x", partition=worker).partition == worker


def test_changes_are_refused_at_the_others(workers):
    ready = json.loads((workers.directory / "ready.json").read_text())["workers"]
    connection = http.client.HTTPConnection("127.0.0.1", ready[1]["admin_port"], timeout=20)
    connection.request(
        "POST",
        "/v1/topics",
        json.dumps({"name": "elsewhere"}),
        {"Authorization": f"Bearer {workers.admin_token}", "Content-Type": "application/json"},
    )
    response = connection.getresponse()
    assert response.status == 400
    assert "first worker" in response.read().decode()
    connection.close()


def test_a_change_is_refused_while_the_others_could_not_hear_of_it(workers):
    """The task that shares metadata ended for good when the file could not be written, and nobody was told."""
    (shared,) = workers.directory.rglob("metadata.json")
    kept = shared.with_name("kept.json")
    shared.rename(kept)
    shared.mkdir()  # nothing can be put in its place
    (shared / "something").touch()
    deadline = time.monotonic() + 30
    numbers = iter(range(1000))
    while True:
        status, answer = call(workers, "POST", "topics", {"name": f"unheard-{next(numbers)}", "partitions": WORKERS})
        if status >= 300:
            break
        assert time.monotonic() < deadline, "the failure was not noticed"
    assert (answer["error"]["code"], "share" in answer["error"]["detail"]) == (5, True)
    (shared / "something").unlink()
    shared.rmdir()
    while True:
        status, answer = call(workers, "POST", "topics", {"name": "heard", "partitions": WORKERS})
        if status < 300:
            break
        assert answer["error"]["code"] == 5
        assert time.monotonic() < deadline, "it does not go on"
    done(workers, "PUT", "subscriptions", {"topic": "heard", "app": "shop", "producer": {}})
    with connect(workers, WORKERS - 1) as mq:
        assert mq.send("heard", b"x", partition=WORKERS - 1).partition == WORKERS - 1


def test_a_worker_that_died_is_started_again_with_all_it_had(workers):
    ready = json.loads((workers.directory / "ready.json").read_text())["workers"]
    with connect(workers) as mq:
        kept = mq.send("orders", b"kept", partition=1)
        os.kill(ready[1]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 30
        while True:  # the same port, a new process
            try:
                again = mq.send("orders", b"again", partition=1)
                break
            except lakemq.LakeMQError:
                assert time.monotonic() < deadline, "the worker did not come back"
        assert again.offset > kept.offset
        with mq.reader("orders", start="earliest", stop="now") as reader:
            found = {(one.partition, one.offset): one.body for one in reader}
        assert found[1, kept.offset] == b"kept"


def test_fewer_workers_than_before_are_refused(tmp_path):
    broker = LiveBroker(tmp_path, mode=STRICT, options=("--workers", "2")).start()
    broker.stop()
    fewer = LiveBroker(tmp_path, mode=STRICT, options=("--workers", "1"))
    with pytest.raises(Exception, match="the data of 2 workers"):
        fewer.start()


def test_the_data_of_a_single_broker_is_not_taken_for_that_of_workers(tmp_path):
    LiveBroker(tmp_path, mode=STRICT).start().stop()
    with pytest.raises(Exception, match="the data of a single broker"):
        LiveBroker(tmp_path, mode=STRICT, options=("--workers", "2")).start()


# --- the coordinator --------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path):
    """Two workers that a test may kill."""
    broker = LiveBroker(tmp_path / "pair", mode=STRICT, options=("--workers", "2")).start()
    try:
        done(broker, "POST", "topics", {"name": "orders", "partitions": 4})
        done(broker, "POST", "apps", {"name": "shop"})
        done(broker, "POST", "apps/shop/tokens", {"token": TOKEN})
        done(broker, "PUT", "subscriptions", {"topic": "orders", "app": "shop", "producer": {}, "consumer": {}})
        yield broker
    finally:
        broker.stop()


@contextlib.contextmanager
def member_of(broker, asked):
    """A consumer as the description has it: it asks some worker who coordinates, and that one for its partitions."""
    with Client(ports_of(broker)[asked], "shop") as asking:
        asking.add_connection(token=TOKEN)
        (found,) = asking.find_coordinator(["orders"])
    assert found["code"] == 0
    with Client(found["broker"]["port"], "shop") as member:
        member.add_connection(token=TOKEN)
        yield found["id"], member


def assigned(member):
    ((_, partitions, code),) = member.fetch_assigned_partition([("orders", 60_000, False)])
    assert code == 0
    return sorted(partitions)


def shared_out(broker):
    """Who coordinates, and the partitions of two members that come one after the other."""
    with member_of(broker, 0) as (number, one), member_of(broker, 1) as (same, other):
        assert number == same
        assigned(one)
        return number, assigned(other), assigned(one)


def test_members_of_an_app_are_assigned_each_partition_once_whichever_worker_they_ask(pair):
    number, *shares = shared_out(pair)
    assert sorted([*shares[0], *shares[1]]) == [0, 1, 2, 3], shares
    with Client(ports_of(pair)[1 - number], "shop") as stranger:
        stranger.add_connection(token=TOKEN)
        with pytest.raises(RefusedError) as refused:
            assigned(stranger)
        assert refused.value.status == 181
    ready = json.loads((pair.directory / "ready.json").read_text())["workers"]
    os.kill(ready[number]["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 30
    while True:  # the parent starts it again, and its members say that they are there
        try:
            again, *shares = shared_out(pair)
            break
        except (OSError, ClosedError):
            assert time.monotonic() < deadline, "the coordinator did not come back"
    assert again == number
    assert sorted([*shares[0], *shares[1]]) == [0, 1, 2, 3], shares

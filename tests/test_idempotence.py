"""Handled once, in the user's own transaction: with SQLite in a file, also where two handle the same at once."""

import threading
import time

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, func, insert, select
from sqlalchemy.orm import Session

from lakemq.idempotence import TABLE, forget_older, idempotence_table, once

METADATA = MetaData()
SEEN = idempotence_table(METADATA)
ORDERS = Table("orders", METADATA, Column("id", Integer, primary_key=True), Column("body", String))


class FakeDelivery:
    """As much of a delivery as is looked at."""

    def __init__(self, message_id="orders/0/7", topic="orders", group="shop.billing"):
        self.message_id = message_id
        self.topic = topic
        self.group = group


@pytest.fixture
def engine(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": 20})
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


def count(engine, table=ORDERS):
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table))


def handle(connection, delivery):
    """What a user's handler does."""
    if once(connection, delivery):
        connection.execute(insert(ORDERS).values(body=delivery.message_id))
        return True
    return False


def test_the_second_delivery_is_not_handled(engine):
    for is_first in (True, False, False):
        with engine.begin() as connection:
            assert handle(connection, FakeDelivery()) is is_first
    assert count(engine) == 1


def test_what_was_rolled_back_is_handled_again(engine):
    with engine.connect() as connection:
        assert handle(connection, FakeDelivery())
        connection.rollback()
    assert count(engine) == 0
    with engine.begin() as connection:
        assert handle(connection, FakeDelivery())
    assert count(engine) == 1


def test_a_session_of_the_orm_does_as_well(engine):
    for is_first in (True, False):
        with Session(engine) as session, session.begin():
            assert handle(session, FakeDelivery()) is is_first
    assert count(engine) == 1


def test_other_groups_topics_and_messages_are_others(engine):
    with engine.begin() as connection:
        assert once(connection, FakeDelivery())
        assert once(connection, FakeDelivery(group="shop.mail"))
        assert once(connection, FakeDelivery(topic="refunds"))
        assert once(connection, FakeDelivery(message_id="orders/0/8"))
        assert not once(connection, FakeDelivery())


def test_a_message_after_a_duplicate_is_still_handled_in_the_same_transaction(engine):
    with engine.begin() as connection:
        assert handle(connection, FakeDelivery("a"))
    with engine.begin() as connection:
        assert not handle(connection, FakeDelivery("a"))
        assert handle(connection, FakeDelivery("b"))
    assert count(engine) == 2


def test_long_ids_are_told_apart(engine):
    with engine.begin() as connection:
        assert once(connection, FakeDelivery("x" * 1000 + "a"))
        assert once(connection, FakeDelivery("x" * 1000 + "b"))
        assert not once(connection, FakeDelivery("x" * 1000 + "a"))


@pytest.mark.parametrize("is_committed", [True, False], ids=["first commits", "first rolls back"])
def test_who_comes_while_another_is_at_it_waits_for_the_outcome(engine, is_committed):
    outcome = []
    is_begun = threading.Event()

    def second():
        with engine.begin() as connection:
            is_begun.set()
            outcome.append(handle(connection, FakeDelivery()))

    with engine.connect() as connection:
        assert handle(connection, FakeDelivery())
        thread = threading.Thread(target=second)
        thread.start()
        is_begun.wait(10)
        thread.join(0.1)
        assert outcome == []  # waits
        connection.commit() if is_committed else connection.rollback()
    thread.join(20)
    assert outcome == [not is_committed]
    assert count(engine) == 1


def test_of_many_at_once_one_handles_it(engine):
    done = []

    def work():
        for number in range(5):
            with engine.begin() as connection:
                done.append((number, handle(connection, FakeDelivery(f"m-{number}"))))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 20
    assert sorted(number for number, is_first in done if is_first) == [0, 1, 2, 3, 4]
    assert count(engine) == 5


def test_what_is_old_is_forgotten(engine):
    with engine.begin() as connection:
        once(connection, FakeDelivery("old"))
        connection.execute(SEEN.update().values(handled_at=int(time.time() * 1000) - 3_600_000))
        once(connection, FakeDelivery("new"))
        assert forget_older(connection, "2h") == 0
        assert forget_older(connection, "30m") == 1
        assert once(connection, FakeDelivery("old"))
        assert not once(connection, FakeDelivery("new"))


def test_the_table_may_have_another_name(tmp_path):
    metadata = MetaData()
    idempotence_table(metadata, "done")
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    metadata.create_all(engine)
    assert TABLE not in metadata.tables
    with engine.begin() as connection:
        assert once(connection, FakeDelivery(), table="done")
        assert not once(connection, FakeDelivery(), table="done")
        assert forget_older(connection, "1h", table="done") == 0
    engine.dispose()

"""A message without a value is not one with an empty value, wherever it comes from."""

import pytest


def bodies(mq, topic):
    with mq.reader(topic, start="earliest", stop="now") as reader:
        return [(message.key, message.body, message.is_tombstone, message.headers) for message in reader]


def test_none_is_sent_as_a_tombstone_and_an_empty_body_is_not(lakemq_broker):
    import lakemq

    with lakemq_broker.connect(app="shop") as mq:
        mq.send("orders", None, key="sent", headers={"h": "1"})
        mq.send("orders", b"", key="empty")
        mq.send_soon("orders", None, key="soon")
        mq.flush()
        many = [None, lakemq.Message(None, key="many", tags=["a"]), lakemq.Message("", key="text"), b"x"]
        mq.send_many("orders", many).raise_if_failed()
        with mq.transaction("orders") as transaction:
            transaction.send(None, key="in a transaction")
        found = bodies(mq, "orders")
        assert sorted(found, key=str) == sorted(
            [
                ("sent", b"", True, {"h": "1"}),
                ("empty", b"", False, {}),
                ("soon", b"", True, {}),
                (None, b"", True, {}),
                ("many", b"", True, {}),
                ("text", b"", False, {}),
                (None, b"x", False, {}),
                ("in a transaction", b"", True, {}),
            ],
            key=str,
        )


def test_a_tombstone_is_none_as_json_and_stays_one_when_it_is_tried_again(lakemq_broker):
    from lakemq.errors import SerializationError

    with lakemq_broker.connect(app="shop") as mq:
        mq.send("orders", None, key="k")
        with mq.consumer("orders", group="billing", auto_ack=False) as consumer:
            (message,) = consumer.receive(1)
            assert (message.json(), message.text(), message.body) == (None, "", b"")
            message.retry("1s")
            lakemq_broker.advance(5)
            (again,) = consumer.receive(1, timeout="5s")
            assert again.attempt == 2
            assert again.is_tombstone
            again.ack()
        mq.send("empty", b"")
        with mq.consumer("empty", group="billing") as consumer:
            (message,) = consumer.receive(1)
            with pytest.raises(SerializationError):
                message.json()

"""Messages that failed, in a broker behind the operators' interface; and time that passes while somebody waits."""

import contextlib
import threading
import time

from lakemq.envelope import pack
from lakemq.message import Message

STEP_MS = 50


def locked(service, work):
    """Do something to the broker, between requests."""
    with service._lock:
        return work()


def fail_some(admin, *bodies, topic="orders", app="shop", dies=True, reason="no such customer"):
    """Messages that an app was lent and gave up: dead letters, or retries that are due in an hour."""
    engine = admin.service.engine

    def work():
        broker = engine.broker
        metadata = broker.ledger.metadata
        known = metadata.topics[topic]
        for body in bodies:
            attributes = {"TAGS": "new"}
            packed = bytearray(pack(Message(body=body, business_id=f"key of {body!r}", attributes=attributes)))
            engine.group.append(known.number, 0, packed, 1, 1, term=1, now_ms=engine.clock.wall_ms())
        engine.settle()
        _pass_time(engine, 1000)
        subscription = metadata.subscription(topic, app)
        lending = broker.consuming.lending(known, subscription)
        end = engine.group.visible_index(known.number, 0)
        now = engine.now()
        first = end - len(bodies)
        if dies:
            entries = broker.outcomes.dead_entries(lending, 0, first, end, "asked", reason, now, attempts=1)
        else:
            wishes = [(index, 3_600_000, reason) for index in range(first, end)]
            entries = broker.outcomes.failed(lending, subscription.consumer, 0, wishes, now)
        broker.outcomes.write(lending, entries, now)
        engine.settle()
        _pass_time(engine, 1000)

    locked(admin.service, work)


def delay_some(admin, *bodies, topic="orders", after_ms=60_000):
    """Messages that wait."""
    engine = admin.service.engine

    def work():
        broker = engine.broker
        known = broker.ledger.metadata.topics[topic]
        for body in bodies:
            packed = bytearray(pack(Message(body=body, business_id=body.decode())))
            due_ms = engine.clock.wall_ms() + after_ms
            broker.delaying.put(known, 0, packed, 1, 1, due_ms, bytes(16), engine.now())
        engine.settle()
        _pass_time(engine, 1000)

    locked(admin.service, work)


def stored(admin, topic="orders", partition=0):
    """How many messages can be read."""
    broker = admin.service.broker
    number = broker.ledger.metadata.topics[topic].number
    return locked(admin.service, lambda: broker.ledger.group.visible_index(number, partition))


@contextlib.contextmanager
def passing_time(admin):
    """Inside, the broker's clock runs, and faster than ours."""
    is_over = threading.Event()
    engine = admin.service.engine

    def run():
        while not is_over.is_set():
            locked(admin.service, lambda: _pass_time(engine, STEP_MS))
            time.sleep(0.002)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _pass_time(engine, spent_ms):
    engine.clock.pass_ms(spent_ms)
    engine.tick()
    engine.settle()

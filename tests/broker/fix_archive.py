"""A broker with an archived topic, its archive, and what the events say."""

from broker.fix_broker import TOKEN, make_broker
from lakemq.delivery.trace_record import EVENTS_TOPIC, EventKind, unpack_events
from lakemq.envelope import unpack_all

ARCHIVE = "lakemq-archive"


def archived_broker(partitions=1, **details):
    """Strict, with topic `orders` that is archived; app `shop` sends and receives."""
    life = make_broker(partitions=partitions, **details)
    life.ask("set_topic", name="orders", is_archived=True)
    life.ask("add_token", name=ARCHIVE, token_id="first", token=TOKEN)
    return life


def archive_of(life):
    return life.peer(ARCHIVE)


def wait_for_events(life):
    for _ in range(3):
        life.pass_ms(25)


def events_of(life, *kinds):
    """All events so far, of these kinds, in order."""
    wait_for_events(life)
    number = life.topic_number(EVENTS_TOPIC)
    group = life.engine.group
    first, end = group.first_index(number, 0), group.visible_index(number, 0)
    slices = group.read(number, 0, first, end - first, 1 << 30) if end > first else []
    blocks = [message.body for one in slices for message in unpack_all(bytes(one.messages))]
    events = [event for block in blocks for event in unpack_events(block)]
    return [event for event in events if not kinds or event.kind in kinds]


def told(events):
    """Kind, app, attempt and indexes of each."""
    return [
        (EventKind(e.kind).name.lower(), e.app, e.attempt, list(range(e.first_index, e.first_index + e.index_count)))
        for e in events
    ]

"""Values for property tests: every command and ack in every form, drawn from the layouts themselves.

A layout made of known field types needs nothing here, so a new command is covered as soon as it is in the table. A
layout with a class of its own needs a row in `_BY_TYPE`; until it has one, `values_of` says so.

All values are canonical for their form: what that form does not carry holds its default, so decode(encode(x)) == x.
"""

import functools

from hypothesis import strategies as st

from lakemq import envelope
from lakemq.compression import Compression
from lakemq.message import BatchItem, BatchMessage, Message, Source
from lakemq.wire import coordinate, fields, messages, metadata, own, produce, session
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.messages import MessageBlock

DOCUMENTED = Form(Dialect.DOCUMENTED, 2)
FORMS = (DOCUMENTED, *(Form(Dialect.JOYQUEUE, version) for version in (1, 2, 3, 4, 9)))


def form_name(form):
    """What a test's id calls a form."""
    return f"{form.dialect.value}-v{form.version}"


def signed(width):
    """Whole numbers of `width` bytes, their edges among them."""
    limit = 1 << (8 * width - 1)
    return st.integers(-limit, limit - 1)


BYTES = signed(1)
SHORTS = signed(2)
INTS = signed(4)
LONGS = signed(8)

# Separators and escapes of the properties syntax, line ends of every kind, what Java escapes and what it does not,
# two- to four-byte characters, and the letters that mean something after a backslash.
NASTY = st.sampled_from("\\=:#! \t\n\r\f\x00\x0b\x1f\x7f\x85\xa0é中\u2028\ufeff\ufffd😀unrtf0a")
CHARACTERS = st.one_of(NASTY, st.characters(exclude_categories=["Cs"]))


def texts(bytes_max, characters_max=None):
    """Text of at most `bytes_max` bytes in UTF-8, now and then exactly that many."""
    characters_max = bytes_max if characters_max is None else characters_max
    longest = min(bytes_max, characters_max)
    return st.one_of(
        st.text(CHARACTERS, max_size=min(8, characters_max, bytes_max // 4)),
        st.text(CHARACTERS, max_size=min(40, characters_max, bytes_max // 4)),
        st.sampled_from(["", "a" * longest, "é" * min(bytes_max // 2, characters_max)]),
    )


# ---- messages ------------------------------------------------------------------------------------------------------

BODIES = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=4), st.integers(0, 1500)),
)
ATTRIBUTES = st.dictionaries(st.text(CHARACTERS, max_size=6), st.text(CHARACTERS, max_size=10), max_size=4)
# Up to 100 characters, which may be up to 400 bytes.
BUSINESS_IDS = st.one_of(
    st.text(CHARACTERS, max_size=12),
    st.builds(lambda unit, count: unit * count, st.sampled_from("aé中😀"), st.integers(0, 100)),
)
ITEMS = st.builds(BatchItem, body=BODIES, business_id=BUSINESS_IDS, attributes=ATTRIBUTES, priority=BYTES, flag=SHORTS)
_CARRIED = {
    "business_id": BUSINESS_IDS,
    "attributes": ATTRIBUTES,
    "priority": BYTES,
    "app": texts(127),
    "extension": st.binary(max_size=20),
    "compression": st.sampled_from(Compression),
    "is_ordered": st.booleans(),
    "source": st.sampled_from(Source),
    "is_ipv6": st.booleans(),
    "send_time_ms": LONGS,
    "partition": SHORTS,
    "index": LONGS,
    "term": INTS,
    "store_time_ms": INTS,
}
SINGLE_MESSAGES = st.builds(Message, body=BODIES, flag=SHORTS, **_CARRIED)
BATCHES = st.builds(BatchMessage, items=st.lists(ITEMS, min_size=1, max_size=4).map(tuple), **_CARRIED)
MESSAGES = st.one_of(SINGLE_MESSAGES, BATCHES)


def block_of(*values):
    """Message values as a block in the stored layout."""
    return MessageBlock(len(values), tuple(envelope.pack(value) for value in values))


def blocks(form):
    """Up to three messages in the layout of that form."""
    stored = st.lists(MESSAGES, max_size=3).map(lambda values: block_of(*values))
    return stored.map(lambda block: block.in_dialect(form.dialect))


# ---- layouts -------------------------------------------------------------------------------------------------------


@functools.cache  # a layout is an object of its own; building its strategy costs more than drawing from it
def values_of(layout, form):
    """Canonical values of a layout in a form."""
    strategy = _BY_TYPE.get(type(layout))
    if strategy is None:
        raise TypeError(f"no strategy for the field type {type(layout).__name__}: add a row to _BY_TYPE")
    return strategy(layout, form)


def _number(layout, form):
    return signed(layout.layout.size)


def _string(layout, form):
    width = layout.joyqueue_width if form.is_joyqueue else layout.width
    return texts({1: 127, 2: 300}[width])


def _array(layout, form):
    return st.lists(values_of(layout.element, form), max_size=3).map(tuple)


def _struct(layout, form):
    return st.builds(layout.of, **{name: values_of(field, form) for name, field in layout.types.items()})


def _joyqueue_only(layout, form):
    is_there = form.is_joyqueue and form.layout_version >= layout.since
    return values_of(layout.field, form) if is_there else st.just(layout.default)


def _consumer_policy(layout, form):
    """JoyQueue's flag is dead: parallel is who prefetches more than one."""
    some = {name: values_of(field, form) for name, field in layout.types.items()}
    if not form.is_joyqueue:
        return st.builds(layout.of, **some)
    del some["is_concurrent"]
    return some["concurrent_prefetch_size"].flatmap(
        lambda size: st.builds(
            layout.of, **{**some, "is_concurrent": st.just(size > 1), "concurrent_prefetch_size": st.just(size)}
        )
    )


def _cluster_topic(layout, form):
    """JoyQueue knows normal and broadcast topics only."""
    some = {name: values_of(field, form) for name, field in layout.types.items()}
    if form.is_joyqueue:
        some["type"] = st.sampled_from([metadata.TopicType.NORMAL, metadata.TopicType.BROADCAST])
    return st.builds(layout.of, **some)


def _topic_coordinator(layout, form):
    """Without a coordinator there is no broker to describe."""
    some = {name: values_of(field, form) for name, field in layout.types.items()}
    some["id"] = some["id"].filter(lambda number: number != coordinate.NO_COORDINATOR)
    return st.one_of(st.builds(layout.of, **some), st.builds(layout.of, topic=some["topic"], code=some["code"]))


def _feedback(layout, form):
    """JoyQueue has no count, and an INT to wait in."""
    return st.builds(
        produce.FetchProduceFeedback,
        app=texts(300),
        topic=texts(300),
        status=BYTES,
        count=st.just(produce.FEEDBACK_COUNT_DEFAULT) if form.is_joyqueue else INTS,
        long_poll_timeout_ms=INTS if form.is_joyqueue else LONGS,
    )


_BY_TYPE = {
    fields.Number: _number,
    type(session.ADD_CONNECTION.types["language"].field): lambda layout, form: st.integers(0, session.LANGUAGE_OTHER),
    fields.Boolean: lambda layout, form: st.booleans(),
    fields.Double: lambda layout, form: st.floats(allow_nan=False),  # NaN is not equal to itself
    fields.String: _string,
    fields.Bytes: lambda layout, form: st.binary(max_size=300),
    fields.Array: _array,
    fields.Pair: lambda layout, form: st.tuples(values_of(layout.first, form), values_of(layout.second, form)),
    fields.Struct: _struct,
    fields.Present: lambda layout, form: st.none() | values_of(layout.field, form),
    fields.ByDialect: lambda layout, form: values_of(layout.joyqueue if form.is_joyqueue else layout.documented, form),
    fields.JoyqueueOnly: _joyqueue_only,
    messages.Messages: lambda layout, form: blocks(form),
    type(metadata.CONSUMER_POLICY): _consumer_policy,
    type(metadata.CLUSTER_TOPIC): _cluster_topic,
    type(coordinate.FIND_COORDINATOR_ACK.types["coordinators"].element): _topic_coordinator,
    type(produce.PRODUCE_MESSAGE_PREPARE.types["timeout_ms"]): lambda layout, form: INTS,
    type(produce.FETCH_PRODUCE_FEEDBACK): _feedback,
    type(own.TRANSACT): _struct,
}

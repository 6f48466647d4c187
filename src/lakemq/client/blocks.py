"""Messages of one partition as the bytes they are stored in, for who takes many apart at once: the data pipeline.

Pure steps over the core. Nothing is lent, nothing is acked, nothing is opened.
"""

from lakemq.client.core import SHARED, Core
from lakemq.client.promise import Steps
from lakemq.errors import BadParameterError, LakeMQError, from_status
from lakemq.wire.buffer import Buffer
from lakemq.wire.consume import FetchPartitionMessage, PartitionFetch, TopicPartitionFetch
from lakemq.wire.session import AddConsumer


def fetch_block(core: Core, topic: str, app: str, partition: int, index: int, count: int) -> Steps[Buffer]:
    """The messages from that index on, as many as an answer holds and `count` at most; no bytes at the end.

    The first may be a batch that begins before the index.
    """
    deadline_ms = core.now_ms + core.config.timeout_ms
    route = yield from core.route(topic, app, deadline_ms)
    if partition not in route.leaders:  # a new one, perhaps
        route = yield from core.route_now(topic, app, deadline_ms)
    leader = route.leaders.get(partition)
    if leader is None:
        core.router.spoil(topic, app)
        raise BadParameterError(f"{topic} has no partition {partition} that can be reached")
    try:
        session = yield from core.connected(leader.address, SHARED, deadline_ms)
        yield from core.introduced(session, AddConsumer, topic, app, deadline_ms)
        wish = PartitionFetch(partition, count, index)
        ack = yield core.ask(session, FetchPartitionMessage((TopicPartitionFetch(topic, (wish,)),), app), deadline_ms)
        found = ack.topics[0].partitions[0]
        if found.code:
            raise from_status(found.code, f"{topic}, partition {partition}, offset {index}")
    except LakeMQError as error:
        core.spoil(error, topic, app)
        raise
    block: Buffer = found.messages.joined() if found.messages.count else b""
    return block

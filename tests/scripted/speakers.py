"""The scripted clients under one roof: what a test asks of a connection of either dialect, and where they differ."""

from dataclasses import dataclass, field
from types import ModuleType

from scripted import documented, documented_bytes, joyqueue, joyqueue_bytes, joyqueue_commands

FLUSH, WRITE, RECEIVE, NO, ALL = "flush", "write", "receive", "no", "all"
PARTITION_COUNT = 4  # of a topic that dev mode makes


@dataclass(frozen=True)
class Speaker:
    """One dialect in one header version, with the numbers that it has of its own."""

    name: str
    client_class: type
    codec: ModuleType
    refused: type
    levels: dict
    unknown_type_status: int
    undecodable_status: int
    source: int
    compressions: tuple
    options: dict = field(default_factory=dict)

    def __str__(self):
        return self.name

    @property
    def is_documented(self):
        return self.codec is documented_bytes

    def open(self, port, app, **options):
        """A connection on which nothing was said."""
        return self.client_class(port, app, **self.options, **options)

    def connect(self, port, app, **names):
        """A connection that has said who it is."""
        client = self.open(port, app)
        client.add_connection(**names)
        return client

    # Sending.

    def message(self, body, **details):
        return self.codec.message(body, **details)

    def produce(self, client, topic, *messages, level=FLUSH, **more):
        """[(partition, index, start time)] of messages that must be taken; None where no answer is due."""
        answer = client.produce_message([(topic, list(messages))], **self.levels[level], **more)
        if answer is None:
            return None
        ((name, code, results),) = answer
        assert (name, code, len(results)) == (topic, 0, len(messages)), f"{len(messages)} messages got {answer}"
        return results

    def send(self, client, topic, *bodies, partition=0, level=FLUSH, **details):
        """Send each body as a message of its own."""
        made = [self.message(body, partition=partition, app=client.app, **details) for body in bodies]
        return self.produce(client, topic, *made, level=level)

    def refusal(self, client, topic, *messages):
        """The code of messages that must not be taken, and the results."""
        answer = client.produce_message([(topic, list(messages))], **self.levels[FLUSH])
        ((name, code, results),) = answer
        assert (name, results) == (topic, [(-1, -1, -1)] * len(messages)), f"refused with {answer}"
        return code

    # Receiving.

    def opened(self, answer):
        """(messages, code) of an answer to FETCH_TOPIC_MESSAGE for one topic."""
        if self.is_documented:
            ((_, messages),) = answer["data"]
            return messages, answer["status"]
        ((_, messages, code),) = answer
        return messages, code

    def poll(self, client, topic, app=None, *, count=10, **times):
        """(messages, code)"""
        return self.opened(client.fetch_topic_message([(topic, count)], app, **times))

    def receive(self, client, topic, app=None, *, count=10, long_poll=5000, **times):
        """Messages, of which there must be some."""
        messages, code = self.poll(client, topic, app, count=count, long_poll=long_poll, **times)
        assert code == 0, f"code {code}"
        assert messages, "nothing came"
        return messages

    def ack(self, client, topic, messages, app=None, kind=0):
        """Ack messages of one partition; the code."""
        (partition,) = {message["partition"] for message in messages}
        acks = [(index, kind) for message in messages for index in indexes_of(message)]
        answer = client.commit_ack([(topic, [(partition, acks)])], app)
        ((name, ((number, code),)),) = answer
        assert (name, number) == (topic, partition), f"an ack of partition {partition} got {answer}"
        return code

    def fetch(self, client, topic, partition, index, count=10, app=None):
        """(messages, code) of one partition."""
        answer = client.fetch_partition_message([(topic, [(partition, count, index)])], app)
        ((name, ((number, messages, code),)),) = answer
        assert (name, number) == (topic, partition), f"asked for {partition} of {topic}, got {number} of {name}"
        return messages, code

    def ack_index(self, client, topic, partition, app=None):
        """The next index the app will get."""
        answer = client.fetch_index([(topic, [partition])], app)
        ((name, ((number, index, code, *_),)),) = answer
        assert (name, number, code) == (topic, partition, 0), f"the index of partition {partition} is {answer}"
        return index


def indexes_of(message):
    """A batch takes as many indexes as it has messages."""
    return range(message["index"], message["index"] + (1 if message["items"] is None else len(message["items"])))


def bodies_of(messages):
    """All bodies, those in batches too."""
    return [
        body
        for message in messages
        for body in ([message["body"]] if message["items"] is None else [item["body"] for item in message["items"]])
    ]


def refused_code(speaker, call):
    """The code of a call, whether the whole request was refused or an ordinary answer has it at its end."""
    try:
        answer = call()
    except speaker.refused as error:
        return error.status
    return answer if isinstance(answer, int) else answer[-1]


DOCUMENTED = Speaker(
    name="documented",
    client_class=documented.Client,
    codec=documented_bytes,
    refused=documented_bytes.RefusedError,
    levels={
        FLUSH: {"qos": documented_bytes.ACK_FLUSH},
        WRITE: {"qos": documented_bytes.ACK_WRITE},
        RECEIVE: {"qos": documented_bytes.ACK_RECEIVE},
        NO: {"qos": documented_bytes.ACK_NO},
    },
    unknown_type_status=6,
    undecodable_status=107,
    source=documented_bytes.JMQ,
    compressions=(None, *documented_bytes.COMPRESSIONS),
)


def _joyqueue(version):
    return Speaker(
        name=f"joyqueue-v{version}",
        client_class=joyqueue.Client,
        codec=joyqueue_bytes,
        refused=joyqueue_commands.RefusedError,
        levels={
            FLUSH: {"qos": joyqueue_bytes.PERSISTENCE},
            WRITE: {"qos": joyqueue_bytes.REPLICATION},
            ALL: {"qos": joyqueue_bytes.ALL},
            RECEIVE: {"qos": joyqueue_bytes.RECEIVE},
            NO: {"qos": joyqueue_bytes.ONE_WAY, "header_qos": 0},
        },
        unknown_type_status=27,
        undecodable_status=28,
        source=joyqueue_bytes.JOYQUEUE,
        compressions=(None, *joyqueue_bytes.COMPRESSIONS),
        options={"version": version},
    )


JOYQUEUE_4, JOYQUEUE_2 = _joyqueue(4), _joyqueue(2)
SPEAKERS = (DOCUMENTED, JOYQUEUE_4, JOYQUEUE_2)

"""Clients of the joyqueue dialect, made from the description of what JoyQueue's peers do: plain sockets.

Client is one connection in Java's manner, PythonClient one in joyqueue-python's. JavaApplication starts up as a Java
application does. Commands return plain tuples, lists and dicts. What is refused as a whole is a RefusedError; an answer
that nobody asked for, or that Java could not read, is a WrongBytesError.
"""

import socket
import time

from scripted import joyqueue_commands as commands
from scripted.joyqueue_bytes import REPLICATION, Writer, WrongBytesError, frame, now_ms, read_ack


class ClosedError(Exception):
    """The server ended the connection."""


class Pending:
    """A request that was sent and not answered yet."""

    def __init__(self, client, number, request_id):
        self._client, self._number, self._request_id = client, number, request_id

    def answer(self, timeout_s=None):
        return self._client.finish(self._number, self._request_id, timeout_s)

    def is_answered(self):
        """Whether the answer is here by now; waits for nothing."""
        return self._client.has_arrived(self._request_id)


class Client:
    """One connection in Java's manner. Every command has a method; those that start with `begin_` do not wait."""

    language = 0
    null = 0
    client_version = "4.2.8"

    def __init__(self, port, app, *, host="127.0.0.1", version=4, timeout_s=10.0):
        self.app, self.version, self.timeout_s = app, version, timeout_s
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = self.socket.getsockname()
        self._last_id = self._last_sequence = 0
        self._buffer = b""
        self._waiting = {}  # request id → None until its answer is here, then the answer
        self._qos = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        else:
            self.socket.close()

    def close(self):
        """End the connection; WrongBytesError if the server still has something to say that nobody asked for."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:  # it has ended already
            self.socket.close()
            return
        try:
            self.wait_for_end()
        finally:
            self.socket.close()

    def drop(self):
        """End the connection without a word, as Java does."""
        self.socket.close()

    # Frames.

    def send_bytes(self, data):
        self.socket.sendall(data)

    def send(self, number, payload=b"", *, qos=1, is_awaited=True):
        """Send any request; its Pending."""
        request_id = self._next_id()
        if is_awaited:
            self._waiting[request_id] = None
            self._qos[request_id] = qos
        sent = self._time()
        self.send_bytes(frame(number, request_id, payload, version=self.version, qos=qos, send_time=sent))
        return Pending(self, number, request_id)

    def finish(self, number, request_id, timeout_s=None):
        """The answer to a request, opened."""
        deadline = time.monotonic() + (timeout_s or self.timeout_s)
        while self._waiting[request_id] is None:
            self._receive(deadline)
        header, payload = self._waiting.pop(request_id)
        if header["version"] != self.version:
            raise WrongBytesError(f"version {header['version']} answers version {self.version}")
        if header["qos"] != self._qos.pop(request_id):
            raise WrongBytesError(f"the QoS bits {header['qos']} are not those of the request")
        return commands.open_ack(number, header, payload)

    def has_arrived(self, request_id):
        try:
            while self._waiting[request_id] is None:
                self._receive(time.monotonic())
        except TimeoutError:
            return False
        return True

    def wait_for_end(self):
        """Until the server closes; what it says before must be an answer to something."""
        deadline = time.monotonic() + self.timeout_s
        try:
            while True:
                self._receive(deadline)
        except (ClosedError, ConnectionResetError):
            return

    def _receive(self, deadline):
        while len(self._buffer) < 4 or len(self._buffer) < int.from_bytes(self._buffer[:4], "big"):
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self.socket.recv(1 << 16)
            if not data:
                if self._buffer:
                    raise WrongBytesError(f"the connection ends inside a frame: {self._buffer[:60].hex()}")
                raise ClosedError("the server closed the connection")
            self._buffer += data
        length = int.from_bytes(self._buffer[:4], "big")
        if length < 26:
            raise WrongBytesError(f"a frame says that it has {length} bytes")
        whole, self._buffer = self._buffer[:length], self._buffer[length:]
        self._take(whole)

    def _take(self, whole):
        header, payload = read_ack(whole)
        if self._waiting.get(header["id"], "nobody") is not None:
            raise WrongBytesError(f"an answer nobody waits for: {header}")
        self._waiting[header["id"]] = header, payload

    def _next_id(self):
        self._last_id += 1
        return self._last_id

    def _next_sequence(self):
        self._last_sequence += 1
        return self._last_sequence

    def _time(self):
        return now_ms()

    def _ask(self, number, write, *values, **named):
        return self.send(number, write(Writer(self.null), *values, **named).data)

    # Commands.

    def add_connection(self, *, app=None, token="token", region="", namespace="", user="", password=""):
        """(connection id, notification)"""
        return self._ask(
            1,
            commands.write_add_connection,
            app or self.app,
            token,
            user=user,
            password=password,
            region=region,
            namespace=namespace,
            language=self.language,
            version=self.client_version,
            ip=self.address[0],
            at=self._time(),
            sequence=self._next_sequence(),
        ).answer()

    def remove_connection(self):
        return self.send(2).answer()

    def begin_add_consumer(self, topics, app=None):
        return self._ask(3, commands.write_add, topics, app or self.app, self._next_sequence())

    def add_consumer(self, topics, app=None):
        """[(topic, consumer id)]"""
        return self.begin_add_consumer(topics, app).answer()

    def remove_consumer(self, topics, app=None):
        return self._ask(4, commands.write_topics, topics, app or self.app).answer()

    def add_producer(self, topics, app=None):
        """[(topic, producer id)]"""
        return self._ask(5, commands.write_add, topics, app or self.app, self._next_sequence()).answer()

    def remove_producer(self, topics, app=None):
        return self._ask(6, commands.write_topics, topics, app or self.app).answer()

    def heartbeat(self):
        return self.send(7).answer()

    def fetch_health(self):
        return self.send(8).answer()

    def fetch_cluster(self, topics, app=None):
        """([topic], [broker]), dicts"""
        return self._ask(10, commands.write_topics, topics, app or self.app).answer()

    def find_coordinator(self, topics, app=None):
        """[{topic, id, broker, code}]; broker is None where the id is -1."""
        return self._ask(20, commands.write_topics, topics, app or self.app).answer()

    def fetch_assigned_partition(self, wishes, app=None):
        """[(topic, [partition], code)] for [(topic, session time-out in ms, is nearby)]"""
        return self._ask(21, commands.write_fetch_assigned_partition, wishes, app or self.app).answer()

    def begin_fetch_topic_message(self, topics, app=None, *, ack_timeout=0, long_poll=0):
        return self._ask(30, commands.write_fetch_topic_message, topics, app or self.app, ack_timeout, long_poll)

    def fetch_topic_message(self, topics, app=None, *, ack_timeout=0, long_poll=0):
        """[(topic, [message], code)] for [(topic, count)]"""
        return self.begin_fetch_topic_message(topics, app, ack_timeout=ack_timeout, long_poll=long_poll).answer()

    def fetch_partition_message(self, topics, app=None):
        """[(topic, [(partition, [message], code)])] for [(topic, [(partition, count, index)])]"""
        return self._ask(31, commands.write_fetch_partition_message, topics, app or self.app).answer()

    def commit_ack(self, topics, app=None):
        """[(topic, [(partition, code)])] for [(topic, [(partition, [(index, type)])])]"""
        return self._ask(32, commands.write_commit_ack, topics, app or self.app).answer()

    def commit_ack_index(self, topics, app=None):
        """[(topic, [(partition, code)])] for [(topic, [(partition, index)])]"""
        return self._ask(33, commands.write_commit_ack_index, topics, app or self.app).answer()

    def fetch_ack_index(self, topics, app=None):
        """Reserved: a server has no answer to it but a refusal."""
        return self._ask(34, commands.write_fetch_index, topics, app or self.app).answer()

    def fetch_index(self, topics, app=None):
        """[(topic, [(partition, index, code)])] for [(topic, [partition])]; from version 3 on also left and right."""
        return self._ask(35, commands.write_fetch_index, topics, app or self.app).answer()

    def begin_produce_message(self, topics, app=None, *, qos=REPLICATION, header_qos=1, tx_id="", timeout=5000):
        payload = commands.write_produce_message(Writer(self.null), topics, app or self.app, qos, tx_id, timeout).data
        return self.send(50, payload, qos=header_qos, is_awaited=header_qos != 0)

    def produce_message(self, topics, app=None, *, qos=REPLICATION, header_qos=1, tx_id="", timeout=5000):
        """[(topic, code, [(partition, index, start time)])] for [(topic, [message])]; None where no answer is due."""
        pending = self.begin_produce_message(topics, app, qos=qos, header_qos=header_qos, tx_id=tx_id, timeout=timeout)
        return pending.answer() if header_qos else None

    def prepare(self, topic, app=None, *, transaction_id="", timeout=600_000):
        """(tx id, code)"""
        sequence = self._next_sequence()
        return self._ask(51, commands.write_prepare, topic, app or self.app, sequence, transaction_id, timeout).answer()

    def commit(self, topic, tx_id, app=None):
        """The code."""
        return self._ask(52, commands.write_end_of_transaction, topic, app or self.app, tx_id).answer()

    def rollback(self, topic, tx_id, app=None):
        """The code."""
        return self._ask(53, commands.write_end_of_transaction, topic, app or self.app, tx_id).answer()

    def fetch_feedback(self, topic, app=None, *, status=0, long_poll=0):
        """([(topic, tx id, transaction id)], code)"""
        return self._ask(54, commands.write_fetch_feedback, topic, app or self.app, status, long_poll).answer()


class PythonClient(Client):
    """joyqueue-python's manner: version 2, one request id for all, seconds, -1 for nothing, small frames only."""

    language = 2
    null = -1
    client_version = "2.1.0"
    request_id = 78237
    frame_bytes_max = 4 + 4096

    def __init__(self, port, app, *, host="127.0.0.1", timeout_s=10.0):
        super().__init__(port, app, host=host, version=2, timeout_s=timeout_s)

    def send(self, number, payload=b"", *, qos=1, is_awaited=True):
        assert not self._waiting, "it has one request outstanding at most"
        assert 23 + len(payload) <= self.frame_bytes_max, "it refuses to send that much"
        return super().send(number, payload, qos=qos, is_awaited=is_awaited)

    def _take(self, whole):
        if len(whole) > self.frame_bytes_max:
            raise WrongBytesError(f"it closes the connection on a frame of {len(whole)} bytes")
        super()._take(whole)

    def _next_id(self):
        return self.request_id

    def _time(self):
        return int(time.time())


class JavaApplication:
    """An application of the Java client: its connections, and what is asked over which when it starts."""

    session_timeout_ms = 60_000

    def __init__(self, port, app, topic, *, group="", host="127.0.0.1", thread_count=4, timeout_s=10.0):
        self.host, self.port, self.timeout_s = host, port, timeout_s
        self.app, self.topic, self.thread_count = app, topic, thread_count
        self.full_app = f"{app}.{group}" if group else app
        self.metadata = self.producer = self.consumer = None

    def start(self):
        """Everything up to the first poll."""
        self.metadata = self._connect(self.host, self.port)
        self.cluster_topic, self.brokers = self._fetch_cluster()
        leader = self._leader()
        self.producer = self._connect(leader["host"], leader["port"])
        self.producer_ids = self.producer.add_producer([self.topic])
        self.consumer = self._connect(leader["host"], leader["port"])
        adding = [self.consumer.begin_add_consumer([self.topic], self.full_app) for _ in range(self.thread_count)]
        self.consumer_ids = [each.answer() for each in adding]
        self.coordinator = self._find_coordinator()
        self.assigned = self._fetch_assigned_partition()
        self.indexes = self._fetch_index()
        return self

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        """Java removes what it added and closes; it never says REMOVE_CONNECTION."""
        if kind is None:
            self.consumer.remove_consumer([self.topic], self.full_app)
            self.producer.remove_producer([self.topic])
        for client in (self.metadata, self.producer, self.consumer):
            if client is not None:
                client.drop()

    @property
    def partitions(self):
        return sorted(each for group in self.cluster_topic["partitionGroups"] for each in group["partitions"])

    def _connect(self, host, port):
        client = Client(port, self.app, host=host, timeout_s=self.timeout_s)
        client.add_connection()
        return client

    def _fetch_cluster(self):
        (topic,), brokers = self.metadata.fetch_cluster([self.topic], self.full_app)
        if topic["topicCode"] != self.topic or topic["code"]:
            raise WrongBytesError(f"the metadata of {self.topic} are {topic}")
        if topic["producerPolicy"] is None or topic["consumerPolicy"] is None:
            raise WrongBytesError(f"{self.full_app} may not use {self.topic}: {topic}")
        if any(broker["permission"] != 3 for broker in brokers):
            raise WrongBytesError(f"no broker available: {brokers}")
        return topic, {broker["id"]: broker for broker in brokers}

    def _leader(self):
        groups = self.cluster_topic["partitionGroups"]
        if not groups or not all(group["partitions"] for group in groups):
            raise WrongBytesError(f"a partition group is empty: {groups}")
        leaders = {group["leader"] for group in groups}
        if not leaders <= set(self.brokers):
            raise WrongBytesError(f"leaders {leaders} are not among the brokers {self.brokers}")
        return self.brokers[groups[0]["leader"]]

    def _find_coordinator(self):
        (found,) = self.metadata.find_coordinator([self.topic], self.full_app)
        if found["topic"] != self.topic or found["code"] or found["broker"] is None:
            raise WrongBytesError(f"there is no coordinator: {found}")
        return found["broker"]

    def _fetch_assigned_partition(self):
        """Over a connection of its own, which is closed at once."""
        with self._connect(self.coordinator["host"], self.coordinator["port"]) as client:
            wish = self.topic, self.session_timeout_ms, False
            ((topic, partitions, code),) = client.fetch_assigned_partition([wish], self.full_app)
        if topic != self.topic or code or not set(partitions) <= set(self.partitions):
            raise WrongBytesError(f"assigned are {partitions} of {topic}, code {code}")
        return partitions

    def _fetch_index(self):
        ((_, found),) = self.consumer.fetch_index([(self.topic, self.partitions)], self.full_app)
        return {partition: (index, left, right) for partition, index, code, left, right in found if code == 0}

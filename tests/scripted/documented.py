"""A client of the documented dialect, made from the protocol's description alone: one plain socket.

A witness: it shares no line with LakeMQ nor with the other scripted client. Commands return plain tuples, lists and
dicts. What is refused as a whole is a RefusedError; an answer that nobody asked for is a WrongBytesError.
"""

import contextlib
import socket
import struct
import time
from itertools import count as counter

from scripted.documented_bytes import (
    ACK_FLUSH,
    ACK_NO,
    ACK_RECEIVE,
    ANSWERS,
    REQUESTS,
    VERSION,
    Cursor,
    RefusedError,
    demand,
    frame,
    now_ms,
    read_response,
)


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
    """One connection. Every command has a method; those that start with `begin_` do not wait for the answer."""

    def __init__(self, port, app, *, host="127.0.0.1", version=VERSION, timeout_s=10.0):
        self.app, self.version, self.timeout_s = app, version, timeout_s
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = self.socket.getsockname()
        self._request_ids = counter(1)
        self._sequences = counter(1)
        self._received = bytearray()
        self._awaited, self._arrived = set(), {}
        self._added = set()
        self.adds_producers = True

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
        """End the connection without a word."""
        self.socket.close()

    # Frames.

    def send_bytes(self, data):
        self.socket.sendall(data)

    def send(self, number, payload=b"", *, qos=ACK_RECEIVE, is_awaited=True):
        """Send any request; its Pending."""
        request_id = next(self._request_ids)
        if is_awaited:
            self._awaited.add(request_id)
        self.send_bytes(frame(number, request_id, payload, version=self.version, qos=qos))
        return Pending(self, number, request_id)

    def finish(self, number, request_id, timeout_s=None):
        """The answer to a request, opened."""
        deadline = time.monotonic() + (timeout_s or self.timeout_s)
        while request_id not in self._arrived:
            self._receive(deadline)
        self._awaited.discard(request_id)
        return self._open(number, self._arrived.pop(request_id))

    def has_arrived(self, request_id):
        try:
            while request_id not in self._arrived:
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
        while len(self._received) < 4 or len(self._received) < struct.unpack_from(">i", self._received)[0]:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self.socket.recv(1 << 16)
            if not data:
                demand(not self._received, f"the connection ends inside a frame: {bytes(self._received[:60]).hex()}")
                raise ClosedError("the server closed the connection")
            self._received += data
        length = struct.unpack_from(">i", self._received)[0]
        demand(length >= 26, f"a frame says that it has {length} bytes")
        response = read_response(self._received[:length])
        del self._received[:length]
        request_id = response["requestId"]
        demand(request_id in self._awaited and request_id not in self._arrived, f"an answer nobody awaits: {response}")
        self._arrived[request_id] = response

    def _open(self, number, response):
        demand(response["version"] == self.version, f"version {response['version']} answers version {self.version}")
        demand(response["type"] == -number, f"type {response['type']} answers type {number}")
        status, error, payload = response["status"], response["error"], response["payload"]
        if status and not payload:
            demand(error, f"status {status} comes without a text")
            raise RefusedError(status, error)
        demand(not status or number == 30, f"status {status} comes with a payload")
        if number in ANSWERS:
            value = ANSWERS[number].read(payload)
            return {"status": status, "error": error, "data": value} if number == 30 else value
        return Cursor(payload).finish()

    def _call(self, number, *values):
        return self.send(number, REQUESTS[number].write(*values)).answer()

    # Commands.

    def add_connection(self, *, app=None, token="token", region="", namespace="", user="", password=""):
        """(connection id, notification)"""
        address, _ = self.address
        values = (user, password, app or self.app, token, region, namespace, "2.1.0", address, now_ms())
        return self._call(1, *values, next(self._sequences))

    def remove_connection(self):
        return self._call(2)

    def begin_add_consumer(self, topics, app=None):
        return self.send(3, REQUESTS[3].write(topics, app or self.app, next(self._sequences)))

    def add_consumer(self, topics, app=None):
        """[(topic, consumer id)]"""
        return self.begin_add_consumer(topics, app).answer()

    def remove_consumer(self, topics, app=None):
        return self._call(4, topics, app or self.app)

    def add_producer(self, topics, app=None):
        """[(topic, producer id)]"""
        return self._call(5, topics, app or self.app, next(self._sequences))

    def remove_producer(self, topics, app=None):
        return self._call(6, topics, app or self.app)

    def heartbeat(self):
        return self._call(7)

    def fetch_health(self):
        return self._call(8)

    def fetch_cluster(self, topics, app=None):
        """([topic], [broker]), dicts"""
        return self._call(10, topics, app or self.app)

    def find_coordinator(self, topics, app=None):
        """[{topic, id, broker, code}]; broker is None where the id is -1."""
        return self._call(20, topics, app or self.app)

    def fetch_assigned_partition(self, wishes, app=None):
        """[(topic, [partition], code)] for [(topic, session time-out in ms, is nearby)]"""
        return self._call(21, wishes, app or self.app)

    def begin_fetch_topic_message(self, topics, app=None, *, ack_timeout=0, long_poll=0):
        return self.send(30, REQUESTS[30].write(topics, app or self.app, ack_timeout, long_poll))

    def fetch_topic_message(self, topics, app=None, *, ack_timeout=0, long_poll=0):
        """{status, error, data: [(topic, [message])]} for [(topic, count)]"""
        return self.begin_fetch_topic_message(topics, app, ack_timeout=ack_timeout, long_poll=long_poll).answer()

    def fetch_partition_message(self, topics, app=None):
        """[(topic, [(partition, [message], code)])] for [(topic, [(partition, count, index)])]"""
        return self._call(31, topics, app or self.app)

    def commit_ack(self, topics, app=None):
        """[(topic, [(partition, code)])] for [(topic, [(partition, [(index, type)])])]"""
        asked = [
            (topic, [(partition, [(partition, *ack) for ack in acks]) for partition, acks in partitions])
            for topic, partitions in topics
        ]
        return self._call(32, asked, app or self.app)

    def commit_ack_index(self, topics, app=None):
        """[(topic, [(partition, code)])] for [(topic, [(partition, index)])]"""
        return self._call(33, topics, app or self.app)

    def fetch_ack_index(self, topics, app=None):
        """As fetch_index."""
        return self._call(34, topics, app or self.app)

    def fetch_index(self, topics, app=None):
        """[(topic, [(partition, index, code)])] for [(topic, [partition])]"""
        return self._call(35, topics, app or self.app)

    def begin_produce_message(self, topics, app=None, *, qos=ACK_FLUSH, header_qos=None, tx_id="", timeout=5000):
        self._add_producers([topic for topic, _ in topics], app or self.app)
        entries = [(topic, tx_id, timeout, qos, messages) for topic, messages in topics]
        header_qos = qos if header_qos is None else header_qos
        is_awaited = (qos, header_qos) != (ACK_NO, ACK_NO)
        return self.send(50, REQUESTS[50].write(entries, app or self.app), qos=header_qos, is_awaited=is_awaited)

    def _add_producers(self, topics, app):
        """Say that these will be sent to, as the description asks for, once; what comes of it the send itself tells."""
        for topic in topics:
            if self.adds_producers and (topic, app) not in self._added:
                self._added.add((topic, app))
                with contextlib.suppress(RefusedError):
                    self.add_producer([topic], app)

    def produce_message(self, topics, app=None, *, qos=ACK_FLUSH, header_qos=None, tx_id="", timeout=5000):
        """[(topic, code, [(partition, index, start time)])] for [(topic, [message])]; None where no answer is due."""
        pending = self.begin_produce_message(topics, app, qos=qos, header_qos=header_qos, tx_id=tx_id, timeout=timeout)
        return None if qos == ACK_NO and header_qos in (None, ACK_NO) else pending.answer()

    def prepare(self, topic, app=None, *, transaction_id="", timeout=None):
        """(tx id, code)"""
        payload = REQUESTS[51].write(topic, app or self.app, next(self._sequences), transaction_id)
        return self.send(51, payload + (b"" if timeout is None else struct.pack(">i", timeout))).answer()

    def commit(self, topic, tx_id, app=None):
        """The code."""
        return self._call(52, topic, app or self.app, tx_id)

    def rollback(self, topic, tx_id, app=None):
        """The code."""
        return self._call(53, topic, app or self.app, tx_id)

    def fetch_feedback(self, topic, app=None, *, status=0, count=10, long_poll=0):
        """([(topic, tx id, transaction id)], code)"""
        return self._call(54, app or self.app, topic, status, count, long_poll)

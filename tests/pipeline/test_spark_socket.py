"""A worker's connection to Spark does not wait for acknowledgements."""

import os
import pickle
import socket
import sys

import pytest

from lakemq.pipeline import spark_socket

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can acknowledge at once when told to")


@pytest.fixture
def pair():
    """Both ends of a TCP connection, each as Spark leaves it."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            yield one, other


def option(one, name):
    return one.getsockopt(socket.IPPROTO_TCP, name)


def test_every_tcp_connection_sends_at_once_and_stays_open(pair):
    assert [option(one, socket.TCP_NODELAY) for one in pair] == [0, 0]
    spark_socket.hurry()
    assert all(option(one, socket.TCP_NODELAY) for one in pair)
    pair[0].sendall(b"still open")
    assert pair[1].recv(100) == b"still open"


@on_linux
def test_what_has_come_is_acknowledged(pair):
    for one in pair:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)  # as after an exchange of requests and answers
    spark_socket.hurry()
    assert all(option(one, socket.TCP_QUICKACK) for one in pair)


def test_other_sockets_and_files_are_let_alone(pair, tmp_path):
    here, there = socket.socketpair()
    with (
        here,
        there,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        open(tmp_path / "file", "wb") as file,
    ):
        spark_socket.hurry()
        assert option(pair[0], socket.TCP_NODELAY)
        here.sendall(b"x")
        assert there.recv(1) == b"x"
        assert datagrams.fileno() >= 0
        file.write(b"y")


def test_where_files_cannot_be_listed_nothing_happens(pair, monkeypatch, tmp_path):
    monkeypatch.setattr(spark_socket, "_FILES", str(tmp_path / "nothing"))
    spark_socket.hurry()
    assert not option(pair[0], socket.TCP_NODELAY)


def test_a_file_that_is_closed_meanwhile_does_no_harm(pair, monkeypatch):
    gone = os.dup(pair[0].fileno())
    os.close(gone)
    monkeypatch.setattr(os, "listdir", lambda _: [str(gone), str(pair[0].fileno())])
    spark_socket.hurry()
    assert option(pair[0], socket.TCP_NODELAY)


def readers_and_writers():
    pytest.importorskip("pyspark", reason="needs the extra spark")
    from pyspark.sql.types import BinaryType, StructField, StructType

    from lakemq.pipeline.source import LakeMQSource

    columns = StructType([StructField("value", BinaryType())])
    options = {"servers": "127.0.0.1:1", "subscribe": "orders", "topic": "orders", "lake": "somewhere"}
    source = LakeMQSource({name: options[name] for name in ("servers", "subscribe")})
    sink = LakeMQSource({name: options[name] for name in ("servers", "topic")})
    files = LakeMQSource({"view": "files", "startingOffsets": "{}", "servers": options["servers"], "lake": "somewhere"})
    return [
        source.reader(columns),
        source.streamReader(columns),
        files.streamReader(columns),
        sink.writer(columns, False),
        sink.streamWriter(columns, False),
    ]


def test_it_happens_when_a_task_is_read_and_nothing_of_it_is_lost(monkeypatch):
    for one in readers_and_writers():
        hurried = []
        monkeypatch.setattr(spark_socket, "hurry", lambda hurried=hurried: hurried.append(True))
        copy = pickle.loads(pickle.dumps(one))
        assert (type(copy), vars(copy).keys()) == (type(one), vars(one).keys())
        assert hurried == [True], type(one)


def test_sparks_own_worker_sends_at_once(spark):
    """The sockets of a worker in the middle of a task, after its reader has been read there."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Probe(spark_socket.SentToWorkers, DataSourceReader):
        def __init__(self):
            self.options = "as all have"  # what has no state is made anew instead of being read

        def read(self, partition):
            import os
            import socket
            import stat

            for name in os.listdir("/dev/fd"):
                try:
                    is_socket = stat.S_ISSOCK(os.fstat(int(name)).st_mode)
                except OSError:
                    continue
                if is_socket:
                    one = socket.socket(fileno=int(name))
                    if one.family == socket.AF_INET:
                        yield (one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),)
                    one.detach()

    class Probes(DataSource):
        @classmethod
        def name(cls):
            return "lakemq_probe"

        def schema(self):
            return "no_delay int"

        def reader(self, schema):
            return Probe()

    spark.dataSource.register(Probes)
    found = [row.no_delay for row in spark.read.format("lakemq_probe").load().collect()]
    assert found
    assert all(found)

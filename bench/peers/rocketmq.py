"""Apache RocketMQ: a name server and one broker, with the broker's defaults but for what is said in SETTINGS."""

from __future__ import annotations

import socket
from pathlib import Path

from peers import wire_rocketmq
from peers.model import Durability, Figures, Frames, Load, Peer, PeerError, Running, say
from peers.packages import by_client, conversation, free_ports, java, maven, missing_maven, wait_for

VERSION = "5.3.3"
COORDINATES = [f"org.apache.rocketmq:rocketmq-namesrv:{VERSION}", f"org.apache.rocketmq:rocketmq-broker:{VERSION}"]
BROKER_HEAP, NAME_SERVER_HEAP = "1g", "256m"
# Those of RocketMQ's own start scripts, but for the size of the heap and that it is not touched beforehand, which
# would only count against it; and what Java 17 asks for.
JAVA_OPTIONS = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-UseLargePages",
    "-Drocketmq.serialize.type=ROCKETMQ",  # answers with binary headers, too; by default they are JSON
    "-Dtls.server.mode=disabled",  # making a key for a test of TLS takes seconds at the start
    *(
        f"--add-opens=java.base/{name}=ALL-UNNAMED"
        for name in ("sun.nio.ch", "java.nio", "java.lang", "jdk.internal.ref")
    ),
    *(f"--add-exports=java.base/{name}=ALL-UNNAMED" for name in ("sun.nio.ch", "jdk.internal.ref")),
]
CLIENT_OPTIONS = ["-Drocketmq.serialize.type=ROCKETMQ", "-Drocketmq.client.logLevel=ERROR"]
START_SECONDS = 90
STARTS_MAX = 3
FLUSH = {Durability.CACHE: "ASYNC_FLUSH", Durability.FSYNC: "SYNC_FLUSH"}
SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    # By default a pull brings 32 messages or 256 KB. The load asks for more.
    "maxTransferBytesOnMessageInMemory": str(64 << 20),
    "maxTransferCountOnMessageInMemory": "100000",
    "maxTransferBytesOnMessageInDisk": str(64 << 20),
    "maxTransferCountOnMessageInDisk": "100000",
    # By default what waited for 200 ms is refused; under a load that waits for every answer that is no help to anybody.
    "brokerFastFailureEnable": "false",
}
MEANING = {
    Durability.CACHE: "ASYNC_FLUSH (the default): answered when the bytes are in the page cache, which is synced "
    "each 500 ms; a power cut loses what came since. Not its defaults: larger limits of a pull, no refusal after "
    "200 ms",
    Durability.FSYNC: "SYNC_FLUSH: the commit log is synced before the answer, once for all requests that wait",
}


class RocketMQ(Peer):
    name = "rocketmq"
    title = f"Apache RocketMQ {VERSION}"
    meaning = MEANING

    def missing(self) -> str:
        return ", ".join(missing_maven(COORDINATES))

    def install(self) -> None:
        maven(COORDINATES)

    def start(self, directory: Path, durability: Durability, cpus: list[int]) -> Running:
        """Some starts end with nothing but a status; those after them do not."""
        for number in range(STARTS_MAX - 1):
            try:
                return self._start(directory / str(number), durability, cpus)
            except PeerError as error:
                say(f"{self.title} is started again: {str(error).splitlines()[0][:100]}")
        return self._start(directory / "last", durability, cpus)

    def _start(self, directory: Path, durability: Durability, cpus: list[int]) -> Running:
        jars = maven(COORDINATES)
        directory = directory.resolve()
        data = directory / "data"
        data.mkdir(parents=True)
        port, name_server_port = broker_port(), free_ports(1)[0]
        home = [f"-Duser.home={directory}", f"-Drocketmq.home.dir={directory}"]  # where it writes its logs, too
        running = Running(port, [], data)
        try:
            log = directory / "namesrv.log"
            settings = written(
                directory / "namesrv.properties", {"bindAddress": "127.0.0.1", "listenPort": str(name_server_port)}
            )
            options = [*JAVA_OPTIONS, *home, *heap(NAME_SERVER_HEAP)]
            name_server = java(
                jars, options, "org.apache.rocketmq.namesrv.NamesrvStartup", ["-c", str(settings)], log, cpus
            )
            running.processes.append(name_server)
            wait_for("RocketMQ's name server", lambda: is_open(name_server_port), name_server, log, START_SECONDS)

            log = directory / "broker.log"
            settings = written(
                directory / "broker.properties",
                SETTINGS
                | {
                    "listenPort": str(port),
                    "namesrvAddr": f"127.0.0.1:{name_server_port}",
                    "storePathRootDir": str(data),
                    "storePathCommitLog": str(data / "commitlog"),
                    "flushDiskType": FLUSH[durability],
                },
            )
            options = [*JAVA_OPTIONS, *home, *heap(BROKER_HEAP)]
            broker = java(jars, options, "org.apache.rocketmq.broker.BrokerStartup", ["-c", str(settings)], log, cpus)
            running.processes.append(broker)
            wait_for(self.title, lambda: answers(port), broker, log, START_SECONDS)
        except BaseException:
            running.stop()
            raise
        return running

    def create_topics(self, running: Running, names: list[str], partitions: int) -> None:
        replies = conversation(running.port, [wire_rocketmq.create_topic(name, partitions) for name in names])
        for name, reply in zip(names, replies, strict=True):
            code, remark = wire_rocketmq.outcome(reply)
            if code != wire_rocketmq.SUCCESS:
                raise PeerError(f"RocketMQ did not create {name}: code {code}, {remark}")

    def frames(self, load: Load, topic: str) -> Frames:
        return wire_rocketmq.frames(load, topic)

    def tool(self, running: Running, load: Load, topic: str, seconds: float, cpus: list[int]) -> Figures | None:
        if load.compression != "none":
            return None
        (reply,) = conversation(running.port, [wire_rocketmq.broker_config()])
        name_server_port = wire_rocketmq.config_of(reply)["namesrvAddr"].rpartition(":")[2]
        words: dict[str, object] = {"name_server_port": name_server_port, "topic": topic}
        return by_client(maven(COORDINATES), "RocketLoad", CLIENT_OPTIONS, load, words, seconds, cpus)


def heap(size: str) -> list[str]:
    return [f"-Xms{size}", f"-Xmx{size}"]


def written(path: Path, settings: dict[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def broker_port() -> int:
    """A broker also listens two below (a second door for producers) and one above (for replicas)."""
    while True:
        (port,) = free_ports(1)
        if not any(is_open(near) for near in (port - 2, port + 1)):
            return port


def is_open(port: int) -> bool:
    with socket.socket() as there:
        return there.connect_ex(("127.0.0.1", port)) == 0


def answers(port: int) -> bool:
    try:
        (reply,) = conversation(port, [wire_rocketmq.broker_config()], seconds=5)
    except OSError:
        return False
    return wire_rocketmq.outcome(reply)[0] == wire_rocketmq.SUCCESS

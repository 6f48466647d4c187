"""Every peer by name, LakeMQ first."""

from __future__ import annotations

from peers.kafka import Kafka
from peers.lakemq_peer import LakeMQ
from peers.model import Peer
from peers.nats import Nats
from peers.rabbitmq import RabbitMQ
from peers.redis_peer import Redis
from peers.rocketmq import RocketMQ

PEERS: dict[str, type[Peer]] = {
    "lakemq": LakeMQ,
    "kafka": Kafka,
    "rocketmq": RocketMQ,
    "nats": Nats,
    "rabbitmq": RabbitMQ,
    "redis": Redis,
}


def peers_named(words: str) -> list[Peer]:
    """LakeMQ, and those named; all, if none is."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := [name for name in names if name not in PEERS]:
        raise SystemExit(f"no peer {', '.join(unknown)}; there are {', '.join(PEERS)}")
    wanted = {"lakemq", *names} if names else set(PEERS)
    return [made() for name, made in PEERS.items() if name in wanted]

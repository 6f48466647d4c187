"""The names that travel: topics, apps, brokers, partition groups. Checked once, where they come in.

A topic is `topic` or `namespace.topic`, an app is `app` or `app.group`: one dot at the most.
At most 127 bytes, because a JoyQueue peer writes the length of some names in one signed byte.
"""

import re
from typing import NewType

from lakemq.errors import BadParameterError

NAME_BYTES_MAX = 127

TopicName = NewType("TopicName", str)
AppName = NewType("AppName", str)
BrokerId = NewType("BrokerId", int)
PartitionGroupId = NewType("PartitionGroupId", int)

Index = NewType("Index", int)
Position = NewType("Position", int)
Term = NewType("Term", int)

# `%` and `|` are there for RocketMQ's own names (%RETRY%app), `/` for JoyQueue's.
_NAME = re.compile(r"[A-Za-z0-9_%|/-]+(?:\.[A-Za-z0-9_%|/-]+)?")


def topic_name(text: str) -> TopicName:
    """Check a topic's full name."""
    return TopicName(_checked(text, "topic"))


def app_name(text: str) -> AppName:
    """Check an app's full name, with its group if it has one."""
    return AppName(_checked(text, "app"))


def split_namespace(topic: TopicName) -> tuple[str, str]:
    """Namespace (empty for the default one) and bare topic."""
    namespace, dot, bare = topic.rpartition(".")
    return (namespace, bare) if dot else ("", topic)


def owner_of(app: AppName) -> str:
    """The part of an app's name that has the token: `shop` for `shop.group`."""
    return app.partition(".")[0]


def _checked(text: str, noun: str) -> str:
    if len(text) > NAME_BYTES_MAX:
        raise BadParameterError(f"the {noun} name has {len(text)} characters; {NAME_BYTES_MAX} are allowed")
    if _NAME.fullmatch(text) is None:
        raise BadParameterError(
            f"{text!r} is no {noun} name: use letters, digits, _ - / % | and at most one dot inside"
        )
    return text

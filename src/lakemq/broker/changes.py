"""Changes of topics, apps and subscriptions: checked, capped, then put into the ledger.

Used by operators and, where the broker creates what is missing, by the first request that needs it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.cluster.metadata import (
    PARTITIONS_MAX,
    TOPIC_TYPES,
    App,
    Limits,
    Metadata,
    Subscription,
    Token,
    Topic,
    digest_of,
    policy_with,
)
from lakemq.delivery.ack_index import AckRow
from lakemq.delivery.filters import parse_filter
from lakemq.delivery.trace_record import EVENTS_TOPIC
from lakemq.errors import BadParameterError, DatabaseError, NameTakenError, TopicNotFoundError, UnknownNameError
from lakemq.names import AppName, app_name, owner_of, topic_name
from lakemq.policy import ConsumerPolicy, ProducerPolicy

STARTS = ("latest", "earliest")
ROLES = ("producer", "consumer")
TOKENS_MAX = 16  # of one app
GROWTHS_MAX = 16  # remembered of one topic: whoever is further behind than that has other worries


class Changes:
    """Every way to change the metadata."""

    def __init__(self, ledger: Ledger, config: BrokerConfig) -> None:
        self._ledger = ledger
        self._config = config
        self._group_ids = config.group_ids or (config.group_id,)
        self.store_failure = ""  # why metadata cannot be shared with other workers, if it cannot
        self._counted: tuple[Mapping[str, Topic], int] = {}, 0  # partitions of these topics: to count them takes long

    def check_owner(self) -> None:
        """BadParameterError unless this broker's word on metadata counts; DatabaseError if it would not be heard."""
        if not self._config.owns_metadata:
            raise BadParameterError("topics, apps and subscriptions are changed at the first worker")
        self.check_store()

    def check_store(self) -> None:
        """DatabaseError while the store that workers share their metadata by cannot be written or read."""
        if self.store_failure:
            raise DatabaseError(f"the metadata that the workers share: {self.store_failure}")

    # --- topics ------------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, now: Now, *, partitions: int | None = None, type: str = "normal", **flags: bool
    ) -> Topic:
        """A new topic; BadParameterError if there is one of that name."""
        metadata = self._ledger.metadata
        topic_name(name)
        if name == EVENTS_TOPIC:
            raise BadParameterError(f"topic {name!r} is made when the first topic is archived")
        if name in metadata.topics:
            raise NameTakenError(f"topic {name!r} exists already")
        if type not in TOPIC_TYPES:
            raise BadParameterError(f"a topic is {', '.join(TOPIC_TYPES)}, not {type!r}")
        count = partitions if partitions is not None else self._config.partitions_default
        groups = self._groups_of(count)
        self._check_cap("topics", len(metadata.topics) + 1, self._config.limits.topics_max)
        self._check_partitions(len(groups))
        topic = replace(Topic(metadata.next_number, name, type, groups), **_checked_flags(flags))  # type: ignore[arg-type]  # only its booleans
        total = self._partition_total() + len(groups)
        self._put_topic(topic, now)
        self._counted = self._ledger.metadata.topics, total
        return topic

    def set_topic(
        self,
        name: str,
        now: Now,
        *,
        partitions: int | None = None,
        write_partitions: int | None = None,
        read_partitions: int | None = None,
        **flags: bool,
    ) -> Topic:
        """Change a topic: more partitions, how many of them are written and read, or whether it may be at all.

        A topic shrinks in two steps: fewer partitions that take messages, then, once these are empty, fewer that hand
        them out.
        """
        topic = self._topic(name)
        changed = replace(topic, **_checked_flags(flags))  # type: ignore[arg-type]  # only its booleans
        if partitions is not None and partitions != topic.partition_count:
            if partitions < topic.partition_count:
                raise BadParameterError(f"topic {name!r} has {topic.partition_count} partitions; it can only grow")
            groups = self._groups_of(partitions)
            self._check_partitions(partitions - topic.partition_count)
            changed = replace(changed, groups=topic.groups + groups[topic.partition_count :])
        changed = self._with_counts(topic, changed, write_partitions, read_partitions)
        if topic.type == "ordered" and changed.writable_count != topic.writable_count:  # keys go elsewhere now
            changed = replace(changed, growths=self._growths(topic, changed))
        if changed != topic:
            self._put_topic(changed, now)
        return changed

    def _with_counts(self, topic: Topic, changed: Topic, write: int | None, read: int | None) -> Topic:
        count = changed.partition_count
        for noun, wanted in (("written", write), ("read", read)):
            if wanted is not None and (isinstance(wanted, bool) or not 0 <= wanted <= count):
                raise BadParameterError(
                    f"from 1 to {count} partitions of topic {topic.name!r} are {noun}, or 0 for all"
                )
        if write is not None:
            changed = replace(changed, write_partitions=write)
        if read is not None:
            changed = replace(changed, read_partitions=read)
        if changed.readable_count < min(topic.readable_count, count):
            if changed.writable_count > changed.readable_count:
                raise BadParameterError(
                    f"{changed.writable_count} partitions of topic {topic.name!r} take messages: let fewer do so first "
                    f"(write_partitions), and wait until all is consumed"
                )
            self.check_drained(topic, changed.readable_count)
        return changed

    def check_drained(self, topic: Topic, first: int) -> None:
        """BadParameterError unless every app is done with all messages of the partitions from that one on."""
        group, metadata = self._ledger.group, self._ledger.metadata
        delayed = self._ledger.state.delays.topics.get(topic.number, 0)
        if delayed:
            raise BadParameterError(f"{delayed} messages of topic {topic.name!r} wait to be delivered later")
        if any(one.topic == topic.number for one in self._ledger.state.transactions.open.values()):
            raise BadParameterError(f"transactions of topic {topic.name!r} are open")
        for one in metadata.subscriptions.values():
            if one.topic != topic.name or one.consumer is None:
                continue
            for partition in range(first, topic.readable_count):
                if topic.groups[partition] != self._config.group_id:
                    continue
                left = group.next_index(topic.number, partition) - self._ledger.state.acks.get(one.number, partition)
                if left > 0:
                    raise BadParameterError(f"app {one.app!r} has {left} messages of partition {partition} before it")

    def _growths(self, topic: Topic, grown: Topic) -> tuple[tuple[int, ...], ...]:
        """Where the partitions of an ordered topic end now that it grows."""
        if set(grown.groups) != {self._config.group_id}:
            raise BadParameterError(
                f"topic {topic.name!r} is ordered and spread over several brokers: it cannot grow, for none of them "
                "knows when all have handed out what came before"
            )
        group = self._ledger.group
        ends = tuple(group.next_index(topic.number, partition) for partition in range(topic.partition_count))
        return (*topic.growths, ends)[-GROWTHS_MAX:]

    def drop_topic(self, name: str, now: Now) -> None:
        """Forget a topic and its subscriptions; its messages go when retention takes their segments."""
        self._topic(name)
        if name == EVENTS_TOPIC and has_events(self._ledger.metadata):
            raise BadParameterError(f"topic {name!r} is there as long as any topic is archived, or any group told of")
        self._ledger.change({"op": "drop_topic", "name": name}, now.wall_ms)

    def _put_topic(self, topic: Topic, now: Now) -> None:
        """Put it into force, together with what archiving it takes."""
        before = self._ledger.metadata.topics.get(topic.name)
        changes: list[dict[str, Any]] = [{"op": "put_topic", "topic": asdict(topic)}]
        if topic.is_archived:
            changes += self._archive_changes(self._ledger.metadata.apply(changes[0]), topic)
        elif before is not None and before.is_archived:
            self._check_free(topic)
            changes += self._free_changes(topic)
        self._ledger.change(changes[0] if len(changes) == 1 else _together(changes), now.wall_ms)

    def _topics(self) -> Iterable[Topic]:
        return self._ledger.metadata.topics.values()

    # --- archived topics -----------------------------------------------------------------------------------------

    def complete(self, now: Now) -> None:
        """The data get their name, and archived topics what archiving takes, as far as they do not have it."""
        if not self._config.owns_metadata:
            return
        if self._config.cluster_id and not self._ledger.metadata.cluster:
            self._ledger.change({"op": "name_cluster", "id": self._config.cluster_id}, now.wall_ms)
        for topic in [one for one in self._topics() if one.is_archived]:
            changes = self._archive_changes(self._ledger.metadata, topic)
            if changes:
                self._ledger.change(_together(changes), now.wall_ms)

    def _archive_changes(self, metadata: Metadata, topic: Topic | None) -> list[dict[str, Any]]:
        """What is missing for a topic to be archived: the archive's app, its subscription, and the topic of events.

        Without a topic: for events alone.
        """
        name = self._config.archive.app
        changes: list[dict[str, Any]] = []

        def put(change: dict[str, Any]) -> None:
            nonlocal metadata
            changes.append(change)
            metadata = metadata.apply(change)

        def subscribe(to: str) -> None:
            old = metadata.subscription(to, name) or Subscription(metadata.next_number, to, name)
            if old.consumer is None:
                policy = ConsumerPolicy(batch_size=self._config.batch_size_default)
                new = replace(old, consumer=policy, start="earliest")
                put({"op": "put_subscription", "subscription": asdict(new)})

        owner = owner_name(name)
        if owner not in metadata.apps:
            put({"op": "put_app", "app": asdict(App(owner, is_open=self._config.creates_missing))})
        if topic is not None:
            subscribe(topic.name)
        if EVENTS_TOPIC not in metadata.topics:  # one partition for each broker, which writes to its own
            events = Topic(metadata.next_number, EVENTS_TOPIC, groups=self._group_ids, is_archived=True)
            put({"op": "put_topic", "topic": asdict(events)})
            subscribe(EVENTS_TOPIC)
        return changes

    def _check_free(self, topic: Topic) -> None:
        """BadParameterError if a producer policy wants the topic archived."""
        for one in self._ledger.metadata.subscriptions.values():
            if one.topic == topic.name and one.producer is not None and one.producer.is_archive:
                raise BadParameterError(
                    f"topic {topic.name!r} is archived: app {one.app!r} sends to it with is_archive"
                )

    def _policy_changes(self, topic: Topic, new: Subscription) -> list[dict[str, Any]]:
        """What is_archive takes: of a producer, that its topic is archived; of a consumer, that there are events."""
        metadata = self._ledger.metadata.apply({"op": "put_subscription", "subscription": asdict(new)})
        if new.producer is not None and new.producer.is_archive and not topic.is_archived:
            change = {"op": "put_topic", "topic": asdict(replace(topic, is_archived=True))}
            metadata = metadata.apply(change)
            return [change, *self._archive_changes(metadata, metadata.topics[topic.name])]
        if new.consumer is not None and new.consumer.is_archive:
            return self._archive_changes(metadata, None)
        return []

    def _free_changes(self, topic: Topic) -> list[dict[str, Any]]:
        """The archive is done with a topic: its mark is forgotten."""
        old = self._ledger.metadata.subscription(topic.name, self._config.archive.app)
        return [self._less(old, None if old.producer is None else "consumer")] if old is not None else []

    def _topic(self, name: str) -> Topic:
        topic = self._ledger.metadata.topics.get(name)
        if topic is None:
            raise TopicNotFoundError(f"there is no topic {name!r}")
        return topic

    def _groups_of(self, partitions: Any) -> tuple[int, ...]:
        if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= PARTITIONS_MAX:
            raise BadParameterError(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions!r}")
        ids = self._group_ids
        return tuple(ids[partition % len(ids)] for partition in range(partitions))

    # --- apps --------------------------------------------------------------------------------------------------

    def create_app(self, name: str, now: Now, *, is_open: bool = False) -> App:
        """A new app, which nobody can connect as before it has a token, unless it is open."""
        metadata = self._ledger.metadata
        if owner_of(app_name(name)) != name:
            raise BadParameterError(f"{name!r} names an app and a group; make the app, then subscribe {name!r}")
        if name in metadata.apps:
            raise NameTakenError(f"app {name!r} exists already")
        self._check_cap("apps", len(metadata.apps) + 1, self._config.limits.apps_max)
        app = App(name, is_open=is_open)
        self._put_app(app, now)
        return app

    def set_limits(self, name: str, limits: Mapping[str, Any], now: Now) -> App:
        """How much an app may use in a second."""
        app = self._app(name)
        changed = replace(app, limits=policy_with(app.limits, limits))
        assert isinstance(changed.limits, Limits)
        self._put_app(changed, now)
        return changed

    def add_token(self, name: str, token_id: str, token: str, now: Now, *, expires_ms: int = 0) -> App:
        """One more token for an app; those before stay good."""
        app = self._app(name)
        if len(token) < 8:
            raise BadParameterError("a token has at least 8 characters")
        if not isinstance(expires_ms, int) or (expires_ms and expires_ms <= now.wall_ms):
            raise BadParameterError("the token would have expired already")
        if any(known.id == token_id for known in app.tokens):
            raise NameTakenError(f"app {name!r} has a token {token_id!r} already")
        self._check_cap("tokens of one app", len(app.tokens) + 1, TOKENS_MAX)
        changed = replace(app, tokens=(*app.tokens, Token(token_id, digest_of(token), expires_ms)))
        self._put_app(changed, now)
        return changed

    def drop_token(self, name: str, token_id: str, now: Now) -> App:
        """That token is good no more; connections that used it stay."""
        app = self._app(name)
        kept = tuple(token for token in app.tokens if token.id != token_id)
        if len(kept) == len(app.tokens):
            raise UnknownNameError(f"app {name!r} has no token {token_id!r}")
        changed = replace(app, tokens=kept)
        self._put_app(changed, now)
        return changed

    def drop_app(self, name: str, now: Now) -> None:
        """Forget an app with its tokens and subscriptions."""
        self._app(name)
        is_needed = any(one.is_archived for one in self._topics()) or has_events(self._ledger.metadata)
        if name == owner_name(self._config.archive.app) and is_needed:
            raise BadParameterError(f"app {name!r} is the archive's, and topics are archived")
        self._ledger.change({"op": "drop_app", "name": name}, now.wall_ms)

    def _put_app(self, app: App, now: Now) -> None:
        self._ledger.change({"op": "put_app", "app": asdict(app)}, now.wall_ms)

    def _app(self, name: str) -> App:
        app = self._ledger.metadata.apps.get(name)
        if app is None:
            raise UnknownNameError(f"there is no app {name!r}")
        return app

    # --- subscriptions -----------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        app: str,
        now: Now,
        *,
        producer: Mapping[str, Any] | None = None,
        consumer: Mapping[str, Any] | None = None,
        start: str = "latest",
    ) -> Subscription:
        """Allow an app to send to a topic, to receive from it, or change the policies it does it by.

        A role that is None stays as it is. A new consumer begins with new messages, or with the oldest kept.
        """
        known = self._topic(topic)
        self._app(owner_of(app_name(app)))
        if start not in STARTS:
            raise BadParameterError(f"a consumer starts at {' or '.join(STARTS)}, not {start!r}")
        metadata = self._ledger.metadata
        old = metadata.subscription(topic, app)
        if old is None:
            self._check_cap("subscriptions", len(metadata.subscriptions) + 1, self._config.limits.subscriptions_max)
            old = Subscription(metadata.next_number, topic, app)
        is_new_consumer = old.consumer is None and consumer is not None
        new = replace(
            old,
            start=start if is_new_consumer else old.start,
            producer=self._producer_policy(old, producer),
            consumer=self._consumer_policy(old, consumer),
        )
        if new.producer is None and new.consumer is None:
            raise BadParameterError("a subscription is for a producer, a consumer or both")
        change = {"op": "put_subscription", "subscription": asdict(new)}
        more = self._policy_changes(known, new)
        self._ledger.change(_together([change, *more]) if more else change, now.wall_ms)
        if is_new_consumer:
            self._start(new, known, now)
        return new

    def unsubscribe(self, topic: str, app: str, now: Now, *, role: str | None = None) -> None:
        """The app may do nothing with the topic any more, or one thing less; its place in it is forgotten."""
        if role not in (None, *ROLES):
            raise BadParameterError(f"a role is {' or '.join(ROLES)}, not {role!r}")
        old = self._ledger.metadata.subscription(topic, app)
        if old is None or (role is not None and getattr(old, role) is None):
            raise UnknownNameError(f"app {app!r} has no subscription to topic {topic!r}")
        if app == self._config.archive.app and self._topic(topic).is_archived and role != "producer":
            raise BadParameterError(f"app {app!r} is the archive's, and topic {topic!r} is archived")
        self._ledger.change(self._less(old, role), now.wall_ms)

    def _less(self, old: Subscription, role: str | None) -> dict[str, Any]:
        """The change that takes a role away, or all."""
        kept = (old.producer if role == "consumer" else None), (old.consumer if role == "producer" else None)
        if kept == (None, None):
            return {"op": "drop_subscription", "topic": old.topic, "app": old.app}
        # A consumer that comes back is another one: what is remembered by the old number is not its.
        number = old.number if kept[0] is None else self._ledger.metadata.next_number
        new = replace(old, number=number, producer=kept[0], consumer=kept[1])
        return {"op": "put_subscription", "subscription": asdict(new)}

    def _start(self, subscription: Subscription, topic: Topic, now: Now) -> None:
        """A new consumer begins: at the oldest message, which needs no record, or behind the newest."""
        if subscription.start == "earliest":
            return
        group = self._ledger.group
        rows = [
            AckRow(subscription.number, partition, index)
            for partition in range(topic.partition_count)
            if (index := group.next_index(topic.number, partition)) > 0
        ]
        if rows:
            self._ledger.move_acks(rows, now.wall_ms)

    def _producer_policy(self, old: Subscription, said: Mapping[str, Any] | None) -> ProducerPolicy | None:
        if said is None:
            return old.producer
        policy: ProducerPolicy = policy_with(old.producer or ProducerPolicy(), said)
        return policy

    def _consumer_policy(self, old: Subscription, said: Mapping[str, Any] | None) -> ConsumerPolicy | None:
        if said is None:
            return old.consumer
        default = ConsumerPolicy(batch_size=self._config.batch_size_default)
        policy: ConsumerPolicy = policy_with(old.consumer or default, said)
        parse_filter(policy.filter)  # refused here, with the position, and not by every fetch
        return policy

    # --- from elsewhere ----------------------------------------------------------------------------------------------

    def replace_all(self, packed: bytes, now: Now) -> bool:
        """Take over what the broker says whose word on metadata counts; False if that is not news."""
        before = self._ledger.metadata
        after = Metadata.unpack(packed)
        if after.version <= before.version:
            return False
        self._ledger.change({"op": "replace_all", "metadata": json.loads(packed)}, now.wall_ms)
        for key, one in after.subscriptions.items():
            old = before.subscriptions.get(key)
            if one.consumer is not None and (old is None or old.number != one.number or old.consumer is None):
                self._start(one, after.topics[one.topic], now)
        return True

    # --- caps --------------------------------------------------------------------------------------------------

    def _check_partitions(self, more: int) -> None:
        self._check_cap("partitions", self._partition_total() + more, self._config.limits.partitions_total_max)

    def _partition_total(self) -> int:
        topics = self._ledger.metadata.topics
        if self._counted[0] is not topics:
            self._counted = topics, sum(topic.partition_count for topic in topics.values())
        return self._counted[1]

    def _check_cap(self, noun: str, count: int, count_max: int) -> None:
        if count > count_max:
            raise BadParameterError(f"there would be {count} {noun}; {count_max} are allowed")


def owner_name(app: str) -> str:
    """The part of an app's name that has the tokens."""
    return owner_of(AppName(app))


def has_events(metadata: Metadata) -> bool:
    """Whether there is anything that the topic of events tells of: archived topics, or groups that are told of."""
    if any(topic.is_archived and topic.name != EVENTS_TOPIC for topic in metadata.topics.values()):
        return True
    return any(one.consumer is not None and one.consumer.is_archive for one in metadata.subscriptions.values())


def _together(changes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"op": "archive_topic", "changes": changes}


def _checked_flags(flags: Mapping[str, Any]) -> dict[str, bool]:
    known = ("is_writable", "is_readable", "is_archived")
    for name, value in flags.items():
        if name not in known:
            raise BadParameterError(f"{name!r} is not a setting of a topic: partitions, {', '.join(known)}")
        if not isinstance(value, bool):
            raise BadParameterError(f"{name} is true or false, not {value!r}")
    return dict(flags)

"""Consumers of the simulation: they fetch by topic, work, ack, and misbehave in every way that consumers do (F43)."""

from collections.abc import Callable
from dataclasses import dataclass

from lakemq.message import AckType
from lakemq.testing.actor import ROLE_CODES, Client, Stage
from lakemq.testing.history import AppKey, violate
from lakemq.testing.net import Weather
from lakemq.wire.commands import Ack
from lakemq.wire.consume import (
    CommitAck,
    FetchTopicMessage,
    MessageAck,
    PartitionAcks,
    TopicAcks,
    TopicFetch,
    TopicPartitions,
)
from lakemq.wire.dialect import Form
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import ExtendLease
from lakemq.wire.session import AddConsumer, RemoveConnection, RemoveConsumer

_FAR = 1 << 40


@dataclass(frozen=True, slots=True)
class ConsumerHabits:
    """How one member of an app receives."""

    count: int = 5
    lease_ms: int = 5000
    wait_ms: int = 1000
    work_ms: int = 20
    polls: int = 1  # at a time, per topic
    misbehaves: float = 0.2


class Consumer(Client):
    """Fetches by topic, works, acks."""

    def __init__(self, stage: Stage, name: str, app: str, form: Form, weather: Weather, habits: ConsumerHabits) -> None:
        super().__init__(stage, name, app, form, weather)
        self.habits = habits

    def introduced(self) -> None:
        topics = tuple(self.stage.topics_of(self.app))
        if not topics:
            self._later_on(200, "introduce", self.introduced)
            return

        def added(status: int, ack: Ack | None) -> None:
            if status:
                self._later_on(self.stage.rng.randint(50, 150), "introduce", self.introduced)
                return
            for topic in topics:
                for _ in range(self.habits.polls):
                    self._fetch(topic)
            self._watch_topics(topics)

        self.ask(AddConsumer(topics, self.app, 1), added)

    def _watch_topics(self, known: tuple[str, ...]) -> None:
        """A topic more: begin anew, over a new connection."""

        def look() -> None:
            if set(self.stage.topics_of(self.app)) - set(known):
                self.hang_up()
            else:
                self._watch_topics(known)

        self._later_on(250, "look for topics", look)

    # --- fetching ----------------------------------------------------------------------------------------------

    def _fetch(self, topic: str) -> None:
        stage, habits, rng = self.stage, self.habits, self.stage.rng
        if stage.topics[topic].is_gone and stage.is_calm:
            self._later_on(200, "fetch", lambda: self._fetch(topic))  # perhaps it was not dropped after all
            return
        wait_ms = 60_000 if stage.is_calm else rng.choice((0, *[habits.wait_ms] * 4))
        wishes = [TopicFetch(topic, 100 if stage.is_calm else habits.count)]
        others = [one for one in stage.topics_of(self.app) if one != topic]
        if others and not stage.is_calm and rng.random() < 0.05:
            wishes.append(TopicFetch(rng.choice(others), habits.count))

        def then(status: int, ack: Ack | None) -> None:
            self._fetched(topic, wait_ms, status, ack)

        self.ask(FetchTopicMessage(tuple(wishes), self.app, habits.lease_ms, wait_ms), then)

    def _fetched(self, topic: str, wait_ms: int, status: int, ack: Ack | None) -> None:
        rng = self.stage.rng
        code = status
        is_served = False
        for told in ack.topics if ack is not None else ():
            if told.messages.count:
                is_served |= told.topic == topic
                self._lent(told.topic, told.messages, is_main=told.topic == topic)
            elif told.topic == topic:
                code = code or told.code
        if code in ROLE_CODES and not is_served:
            self._later_on(rng.randint(50, 150), "introduce", self.hang_up)
        elif code and not is_served:
            self._later_on(rng.randint(20, 100), "fetch", lambda: self._fetch(topic))
        elif not is_served:
            self._later_on(rng.randint(30, 90) + (0 if wait_ms else 60), "fetch", lambda: self._fetch(topic))

    def _lent(self, topic: str, block: MessageBlock, *, is_main: bool) -> None:
        partition, found = self.open_block(topic, block)
        history = self.stage.history
        history.run_of(topic, partition, found)
        key = topic, self.app, partition
        left_ms = None if self._weather.reads_every_ms else self.left_ms
        history.lent(key, self.connection, found, left_ms, self.habits.lease_ms, is_over=self.is_let_go)
        indexes = [one.index for one in found]
        work_ms = 2 if self.stage.is_calm else self.habits.work_ms
        self._later_on(self.stage.rng.randint(0, work_ms), "work", lambda: self._work(key, indexes, is_main=is_main))

    def _work(self, key: AppKey, indexes: list[int], *, is_main: bool) -> None:
        """Done with these; go on, or do what should not be done."""
        rng, topic = self.stage.rng, key[0]

        def go_on() -> None:
            if is_main:
                self._fetch(topic)

        if self.stage.is_calm or rng.random() >= self.habits.misbehaves:
            self._ack(key, indexes, then=go_on)
            return
        habits = ["die", "late", "twice", "partial", "gap", "nack", "extend", "bogus", "leave", "unordered"]
        if self.habits.lease_ms <= 1500:
            habits.append("forget")
        what = rng.choice(habits)
        self.stage.history.counts[f"consumer {what}"] += 1
        getattr(self, f"_do_{what}")(key, indexes, go_on)

    # --- habits --------------------------------------------------------------------------------------------------

    def _do_die(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        self.hang_up()

    def _do_late(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        self._later_on(min(self.habits.lease_ms + 100, 2500), "ack late", lambda: self._ack(key, indexes, then=go_on))

    def _do_twice(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        self._ack(key, indexes)
        self._ack(key, indexes, then=go_on)

    def _do_partial(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        middle = (len(indexes) + 1) // 2
        self._ack(key, indexes[:middle], then=lambda: self._ack(key, indexes[middle:] or indexes, then=go_on))

    def _do_unordered(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        self._ack(key, indexes[::-1], then=go_on)

    def _do_gap(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        def all_of_it() -> None:
            if self.stage.rng.random() < 0.3:
                self.hang_up()
            else:
                self._ack(key, indexes, then=go_on)

        self._later_on(0, "gap", lambda: self._ack(key, indexes[1:] or indexes, then=all_of_it))

    def _do_nack(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        self._ack(key, indexes, kind=AckType.EXCEPTION, then=go_on)

    def _do_forget(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        go_on()

    def _do_extend(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        if self.is_joyqueue:
            self._ack(key, indexes, then=go_on)
            return
        topic, app, partition = key
        # As long as before, so that what is surely held stays a lower bound.
        command = ExtendLease((TopicPartitions(topic, (partition,)),), app, self.habits.lease_ms)
        self.ask(command, lambda status, ack: self._ack(key, indexes, then=go_on))

    def _do_bogus(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        """An ack of what nobody has sent yet."""
        topic, app, partition = key
        acks = (MessageAck(partition, _FAR),)

        def then(status: int, ack: Ack | None) -> None:
            if not status and ack is not None and ack.topics[0].partitions[0].code == 0:
                violate("I06", f"{key}: an ack of index {_FAR} was taken")
            self._ack(key, indexes, then=go_on)

        self.ask(CommitAck((TopicAcks(topic, (PartitionAcks(partition, acks),)),), app), then)

    def _do_leave(self, key: AppKey, indexes: list[int], go_on: Callable[[], None]) -> None:
        """Say goodbye properly, and come again over a new connection."""
        topics = tuple(self.stage.topics_of(self.app))
        self.stage.history.connection_over(self.connection)
        self.is_leaving = True
        if self.stage.rng.random() < 0.5:
            self.ask(RemoveConsumer(topics, self.app), lambda status, ack: self.hang_up())
        else:
            self.ask(RemoveConnection(), lambda status, ack: self.hang_up())

    # --- acks ----------------------------------------------------------------------------------------------------

    def _ack(
        self,
        key: AppKey,
        indexes: list[int],
        *,
        kind: AckType = AckType.SUCCESS,
        then: Callable[[], None] | None = None,
    ) -> None:
        topic, app, partition = key
        history = self.stage.history
        history.begin_release(key)
        asked = history.ask(key)
        if kind is AckType.SUCCESS:
            history.ack(key, indexes)
        acks = tuple(MessageAck(partition, index, kind) for index in indexes)

        def over() -> None:
            history.end_release(key, self.stage.now_ms())

        def answered(status: int, ack: Ack | None) -> None:
            over()
            code = status if status or ack is None else ack.topics[0].partitions[0].code
            history.counts[f"ack code {code}"] += 1
            if code == 0 and kind is AckType.SUCCESS:
                history.acked(key, asked, min(indexes), max(indexes), may_be_ignored=self.is_joyqueue)
            if then is None:
                return
            if code in (0, 140, 184, 240):
                then()
            else:  # refused for now: as after a restart, the messages come again
                self._later_on(self.stage.rng.randint(20, 100), "go on", then)

        self.ask(CommitAck((TopicAcks(topic, (PartitionAcks(partition, acks),)),), app), answered, over)

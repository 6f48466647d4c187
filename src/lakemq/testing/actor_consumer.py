"""Consumers of the simulation: they fetch by topic, work, ack, fail, and misbehave in every way that consumers do.

F43: they die with messages in hand, ack late or twice. F44: some messages fail whenever they are tried.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lakemq.message import AckType
from lakemq.testing.actor import ROLE_CODES, Client, Stage
from lakemq.testing.history import AppKey, Asked, Delivered, Said, violate
from lakemq.testing.net import Weather
from lakemq.testing.standing import Release
from lakemq.wire.commands import Ack, Command
from lakemq.wire.consume import (
    RETRY_PARTITION,
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
from lakemq.wire.own import ExtendLease, Settle, Settlement, TopicSettlements
from lakemq.wire.session import AddConsumer, RemoveConnection, RemoveConsumer

_FAR = 1 << 40
DONE, FAILED, DEAD = 0, 1, 2
_FAILURES = (AckType.TIMEOUT, AckType.EXCEPTION, AckType.OTHER)


@dataclass(frozen=True, slots=True)
class ConsumerHabits:
    """How one member of an app receives."""

    count: int = 5
    lease_ms: int = 5000
    wait_ms: int = 1000
    work_ms: int = 20
    polls: int = 1  # at a time, per topic
    misbehaves: float = 0.2
    fails: float = 0.0  # of the answers it works on, some messages fail
    poison: int = 0  # one message of so many fails whenever it is tried; 0: none
    is_piecemeal: bool = False  # now and then it says of each message in a request of its own how it went


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

        asked_ms = stage.now_ms()

        def then(status: int, ack: Ack | None) -> None:
            self._fetched(topic, wait_ms, asked_ms, status, ack)

        self.ask(FetchTopicMessage(tuple(wishes), self.app, habits.lease_ms, wait_ms), then)

    def _fetched(self, topic: str, wait_ms: int, asked_ms: int, status: int, ack: Ack | None) -> None:
        rng = self.stage.rng
        code = status
        is_served = False
        for told in ack.topics if ack is not None else ():
            if told.messages.count:
                is_served |= told.topic == topic
                self._lent(told.topic, told.messages, asked_ms, is_main=told.topic == topic)
            elif told.topic == topic:
                code = code or told.code
        if code in ROLE_CODES and not is_served:
            self._later_on(rng.randint(50, 150), "introduce", self.hang_up)
        elif code and not is_served:
            self._later_on(rng.randint(20, 100), "fetch", lambda: self._fetch(topic))
        elif not is_served:
            self._later_on(rng.randint(30, 90) + (0 if wait_ms else 60), "fetch", lambda: self._fetch(topic))

    def _lent(self, topic: str, block: MessageBlock, asked_ms: int, *, is_main: bool) -> None:
        partition, found = self.open_block(topic, block)
        history = self.stage.history
        may_skip = history.has_expiring or history.rules_of(topic, self.app).may_skip
        if partition != RETRY_PARTITION and not may_skip:
            history.run_of(topic, partition, found)
        key = topic, self.app, partition
        left_ms = None if self._weather.reads_every_ms else self.left_ms
        history.lent(
            key,
            self.connection,
            found,
            left_ms,
            self.habits.lease_ms,
            is_over=self.is_let_go,
            asked_ms=asked_ms,
            now_ms=self.stage.now_ms(),
        )
        work_ms = 2 if self.stage.is_calm else self.habits.work_ms
        self._later_on(self.stage.rng.randint(0, work_ms), "work", lambda: self._work(key, found, is_main=is_main))

    def _work(self, key: AppKey, found: list[Delivered], *, is_main: bool) -> None:
        """Done with these; go on, or do what should not be done."""
        rng, topic = self.stage.rng, key[0]

        def go_on() -> None:
            if is_main:
                self._fetch(topic)

        if self.stage.is_calm:
            self._ack(key, found, then=go_on)
        elif rng.random() < self.habits.misbehaves:
            habits = ["die", "late", "twice", "partial", "gap", "nack", "extend", "bogus", "leave", "unordered"]
            if self.habits.lease_ms <= 1500:
                habits.append("forget")
            if self.habits.is_piecemeal:
                habits += ["piecemeal"] * 4
            what = rng.choice(habits)
            self.stage.history.counts[f"consumer {what}"] += 1
            getattr(self, f"_do_{what}")(key, found, go_on)
        else:
            self._say(key, self._outcomes(found), go_on)

    def _outcomes(self, found: list[Delivered]) -> list[Said]:
        """How it went with each of them."""
        rng, habits = self.stage.rng, self.habits
        fails = rng.random() < habits.fails
        said = []
        for one in found:
            is_bad = (habits.poison and one.payload % habits.poison == 0) or (fails and rng.random() < 0.4)
            if not is_bad:
                said.append(Said(one))
            elif self.is_joyqueue or rng.random() < 0.5:
                said.append(Said(one, FAILED))
            else:
                said.append(Said(one, rng.choice((FAILED, FAILED, FAILED, DEAD)), rng.choice((-1, 0, 30, 250))))
        return said

    # --- habits --------------------------------------------------------------------------------------------------

    def _do_die(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        self.hang_up()

    def _do_late(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        self._later_on(min(self.habits.lease_ms + 100, 2500), "ack late", lambda: self._ack(key, found, then=go_on))

    def _do_twice(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        self._ack(key, found)
        self._ack(key, found, then=go_on)

    def _do_partial(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        middle = (len(found) + 1) // 2
        self._ack(key, found[:middle], then=lambda: self._ack(key, found[middle:] or found, then=go_on))

    def _do_unordered(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        self._ack(key, found[::-1], then=go_on)

    def _do_gap(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        def all_of_it() -> None:
            if self.stage.rng.random() < 0.3:
                self.hang_up()
            else:
                self._ack(key, found, then=go_on)

        self._later_on(0, "gap", lambda: self._ack(key, found[1:] or found, then=all_of_it))

    def _do_nack(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        if self.stage.rng.random() < 0.4:  # and once more, which must not count
            self._say(key, [Said(one, FAILED) for one in found], None)
        self._say(key, [Said(one, FAILED) for one in found], go_on)

    def _do_piecemeal(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        """One request for each message, in order; one that fails does not keep it from going on."""
        said = self._outcomes(found)
        if all(one.outcome == DONE for one in said):
            said[len(said) // 2] = Said(found[len(said) // 2], FAILED)

        def say_next() -> None:
            if said:
                self._say(key, [said.pop(0)], say_next)
            else:
                go_on()

        say_next()

    def _do_forget(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        go_on()

    def _do_extend(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        if self.is_joyqueue:
            self._ack(key, found, then=go_on)
            return
        topic, app, partition = key
        # As long as before, so that what is surely held stays a lower bound.
        command = ExtendLease((TopicPartitions(topic, (partition,)),), app, self.habits.lease_ms)
        self.ask(command, lambda status, ack: self._ack(key, found, then=go_on))

    def _do_bogus(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        """An ack of what nobody has sent yet."""
        topic, app, partition = key
        acks = (MessageAck(partition, _FAR),)

        def then(status: int, ack: Ack | None) -> None:
            if not status and ack is not None and ack.topics[0].partitions[0].code == 0:
                violate("I06", f"{key}: an ack of index {_FAR} was taken")
            self._ack(key, found, then=go_on)

        self.ask(CommitAck((TopicAcks(topic, (PartitionAcks(partition, acks),)),), app), then)

    def _do_leave(self, key: AppKey, found: list[Delivered], go_on: Callable[[], None]) -> None:
        """Say goodbye properly, and come again over a new connection."""
        topics = tuple(self.stage.topics_of(self.app))
        self.stage.history.connection_over(self.connection)
        self.is_leaving = True
        if self.stage.rng.random() < 0.5:
            self.ask(RemoveConsumer(topics, self.app), lambda status, ack: self.hang_up())
        else:
            self.ask(RemoveConnection(), lambda status, ack: self.hang_up())

    # --- acks ----------------------------------------------------------------------------------------------------

    def _ack(self, key: AppKey, found: list[Delivered], *, then: Callable[[], None] | None = None) -> None:
        self._say(key, [Said(one) for one in found], then)

    def _say(self, key: AppKey, said: list[Said], then: Callable[[], None] | None, tries: int = 3) -> None:
        """Tell the broker, with COMMIT_ACK if that has words for it."""
        history, stage = self.stage.history, self.stage
        sent_ms = stage.now_ms()
        failed = [one for one in said if one.outcome != DONE]
        keeps_order = history.rules_of(key[0], key[1]).keeps_order
        sure_until = {one: self._held_until(key, one.one.index) for one in said}
        release = self._begin_release(key, said, failed)
        asked = history.ask(key)
        history.say(key, said, sent_ms)

        def over() -> None:
            history.end_release(key, release, stage.now_ms())

        def answered(status: int, ack: Ack | None) -> None:
            over()
            code = status or (_code_of(ack) if ack is not None else 4)
            history.counts[f"ack code {code}"] += 1
            if code == 0 and key[2] != RETRY_PARTITION:
                held = {one.one.index for one in said if stage.now_ms() < sure_until[one]}
                self._taken(key, asked, said, failed, held)
                low = min(one.one.index for one in said)
                for one in failed:
                    is_sure = stage.now_ms() < sure_until[one] and (low <= asked.floor or not self.is_joyqueue)
                    if is_sure and keeps_order and one.outcome == FAILED and one is failed[0]:
                        history.stuck(key, asked, one, sent_ms, stage.now_ms())
            if then is None:
                return
            if code in (0, 140, 184, 240):
                then()
            elif tries:  # refused for now
                again = partial(self._say, key, said, then, tries - 1)
                self._later_on(stage.rng.randint(20, 100), "say again", again)
            else:
                self.hang_up()

        self.ask(self._command(key, said), answered, over)

    def _held_until(self, key: AppKey, index: int) -> int:
        hold = self.stage.history.standing(key).holder_of(index, self.connection, self.stage.now_ms())
        return hold.end_ms if hold is not None else 0

    def _begin_release(self, key: AppKey, said: list[Said], failed: list[Said]) -> Release:
        """What this may end: the leases on these messages; all of its own if it fails, or speaks JoyQueue's dialect."""
        history = self.stage.history
        if failed and history.rules_of(key[0], key[1]).is_strict:
            return history.begin_release(key)
        indexes = [one.one.index for one in said]
        return history.begin_release(key, indexes, self.connection if failed or self.is_joyqueue else 0)

    def _taken(self, key: AppKey, asked: Asked, said: list[Said], failed: list[Said], held: set[int]) -> None:
        history = self.stage.history
        rules = history.rules_of(key[0], key[1])
        done = [one.one.index for one in said if one.outcome == DONE]
        if failed and rules.keeps_order:  # what is behind the first that failed comes again, if order is by key in part
            done = [index for index in done if index < min(one.one.index for one in failed)]
        if not self.is_joyqueue or (done and min(done) <= asked.floor):
            history.check_order(key, asked, done)
        history.acked(key, asked, done, may_be_ignored=self.is_joyqueue)
        if not self.is_joyqueue:
            history.done_for_good(key, asked, held.intersection(done), self.stage.now_ms())

    def _command(self, key: AppKey, said: list[Said]) -> Command:
        topic, app, partition = key
        rng = self.stage.rng
        is_plain = all(one.outcome != DEAD and one.after_ms < 0 for one in said)
        if self.is_joyqueue or (is_plain and rng.random() < 0.7):
            acks = tuple(
                MessageAck(partition, _number_of(key, one), rng.choice(_FAILURES) if outcome else AckType.SUCCESS)
                for one, outcome, _ in said
            )
            return CommitAck((TopicAcks(topic, (PartitionAcks(partition, acks),)),), app)
        settlements = tuple(
            Settlement(partition, _number_of(key, one), outcome, after_ms, "as drawn")
            for one, outcome, after_ms in said
        )
        return Settle((TopicSettlements(topic, settlements),), app)


def _number_of(key: AppKey, one: Delivered) -> int:
    """The index it came with."""
    return one.carrier if key[2] == RETRY_PARTITION else one.index


def _code_of(ack: Ack) -> int:
    """The code of the only partition that was named."""
    topic = ack.topics[0]
    code: int = topic.settled[0].code if hasattr(topic, "settled") else topic.partitions[0].code
    return code

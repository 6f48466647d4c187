"""What operators do in the simulation while all goes on: topics, subscriptions, pauses, seeks, limits."""

from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from typing import Any

from lakemq.broker.dead_lettering import RESENT_TO_APP
from lakemq.broker.events import AdminAsked
from lakemq.errors import LakeMQError
from lakemq.testing.actor import Stage, TopicFacts, bodies_of
from lakemq.testing.history import AppKey, Origin, Resend, violate
from lakemq.testing.host import Host

LATE_APPS = ("late0", "late1")  # those that subscribe while all goes on
_MORE_PARTITIONS = 4  # at the most that a topic may have got meanwhile

Said = Callable[[bool], None]
Answered = Callable[[Any, LakeMQError | None], None]


class Operators:
    """One method per change of `plan.CHANGES`. Nobody knows how an action ended that a death left unanswered."""

    def __init__(
        self,
        rng: Random,
        host: Host,
        stage: Stage,
        come: Callable[[str], None],
        apps: list[str],
        policies: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._rng = rng
        self._host = host
        self._stage = stage
        self._come = come  # a new member for that app
        self._apps = apps  # with limits
        self._policies = policies
        self._numbers = count()
        self._topic_numbers = count(100)
        self._late_numbers = count()
        self._paused: set[tuple[str, str]] = set()
        self._closed: set[str] = set()
        self._limited: set[str] = set()
        self._unsubscribed: set[tuple[str, str]] = set()  # at some time, or perhaps
        self.grown: set[str] = set()
        self.kinds: dict[str, Callable[[], None]] = {
            "create topic": self._create_topic,
            "grow topic": self._grow_topic,
            "pause": self._pause,
            "seek": self._seek,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "drop topic": self._drop_topic,
            "close topic": self._close_topic,
            "limit app": self._limit_app,
            "cancel delay": self._cancel_delay,
            "resend dead": self._resend_dead,
            "retry now": self._retry_now,
        }

    def ask(
        self,
        action: str,
        arguments: Mapping[str, Any],
        then: Said | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        """Ask the broker; `then` is told whether it was done, `lost` that nobody knows."""
        self._ask(action, arguments, lambda _, error: then(error is None) if then is not None else None, lost)

    def _ask(
        self, action: str, arguments: Mapping[str, Any], then: Answered, lost: Callable[[], None] | None = None
    ) -> None:
        """The same; `then` gets the answer itself."""
        number = next(self._numbers)
        told: list[bool] = []

        def answer(result: Any, error: LakeMQError | None) -> None:
            self._host.asks.pop(number, None)
            if told:
                violate("answers", f"an operator was answered twice: {action} {arguments}")
            told.append(error is None)
            self._stage.history.counts[f"admin {action}" if error is None else f"admin refused {action}"] += 1
            then(result, error)

        self._host.asks[number] = lost if lost is not None else _nothing
        self._host.act("admin", lambda engine: engine.handle(AdminAsked(action, dict(arguments), answer)))
        if self._host.engine is None and number in self._host.asks:
            self._host.asks.pop(number)()

    def heal(self) -> None:
        """What was closed, paused or limited is so no more."""
        engine = self._host.engine
        assert engine is not None
        metadata = engine.broker.ledger.metadata
        for topic, app in sorted(self._paused):
            if metadata.subscription(topic, app) is not None:
                self.ask("subscribe", {"topic": topic, "app": app, "consumer": {"is_paused": False}})
        for name in sorted(self._closed):
            if name in metadata.topics:
                self.ask("set_topic", {"name": name, "is_writable": True, "is_readable": True})
        for app in sorted(self._limited):
            self.ask("set_app", {"name": app, "produce_per_second": 0, "fetch_per_second": 0})

    def _later(self, delay_ms: int, name: str, work: Callable[[], None]) -> None:
        """Take a change back after a while, unless `heal` has done so before."""

        def unless_healed() -> None:
            if not self._stage.is_calm:
                work()

        self._stage.at(delay_ms, name, unless_healed)

    # --- topics ------------------------------------------------------------------------------------------------

    def _a_topic(self) -> TopicFacts | None:
        living = self._stage.living_topics()
        return self._rng.choice(living) if living else None

    def _policy(self, topic: str, app: str, is_ordered: bool) -> dict[str, Any]:
        """That of the app, told to the history."""
        policy = dict(self._policies.get(app, {}))
        self._stage.history.serves(topic, app, policy, is_ordered=is_ordered)
        return policy

    def _create_topic(self) -> None:
        facts = TopicFacts(f"t{next(self._topic_numbers)}", self._rng.randint(1, 3), self._rng.random() < 0.3)
        app = self._rng.choice(list(self._stage.subscriptions))
        policy = self._policy(facts.name, app, facts.is_ordered)

        def subscribed(is_done: bool) -> None:
            if is_done:
                self._stage.subscriptions[app].append(facts.name)

        def made(is_done: bool) -> None:
            if is_done:
                self._stage.topics[facts.name] = facts
                if facts.is_ordered:
                    self._stage.history.ordered.add(facts.name)
                wish = {"topic": facts.name, "app": app, "consumer": policy, "start": "earliest"}
                self.ask("subscribe", wish, subscribed)

        self.ask("create_topic", facts.settings(), made)

    def _grow_topic(self) -> None:
        facts = self._a_topic()
        if facts is None:
            return
        partitions = facts.partitions + self._rng.randint(1, 2)
        self.grown.add(facts.name)

        def grown(is_done: bool) -> None:
            if is_done:
                facts.partitions = max(facts.partitions, partitions)

        self.ask("set_topic", {"name": facts.name, "partitions": partitions}, grown)

    def _drop_topic(self) -> None:
        facts = self._a_topic()
        if facts is None or len(self._stage.living_topics()) < 2:
            return
        facts.is_gone = True
        history = self._stage.history
        history.dropped.add(facts.name)
        for key in history.standings:
            if key[0] == facts.name:
                history.may_release(key)
        self.ask("drop_topic", {"name": facts.name})

    def _close_topic(self) -> None:
        facts = self._a_topic()
        if facts is None:
            return
        self._closed.add(facts.name)
        flag = self._rng.choice(("is_writable", "is_readable"))
        self.ask("set_topic", {"name": facts.name, flag: False})
        self._later(
            self._rng.randint(100, 800), "open again", lambda: self.ask("set_topic", {"name": facts.name, flag: True})
        )

    # --- subscriptions -------------------------------------------------------------------------------------------

    def _a_subscription(self) -> tuple[str, str] | None:
        stage = self._stage
        pairs = [(topic, app) for app in stage.subscriptions for topic in stage.topics_of(app)]
        return self._rng.choice(pairs) if pairs else None

    def _keys(self, topic: str, app: str) -> list[AppKey]:
        return [(topic, app, one) for one in range(self._stage.topics[topic].partitions + _MORE_PARTITIONS)]

    def _pause(self) -> None:
        pair = self._a_subscription()
        if pair is None:
            return
        self._paused.add(pair)
        topic, app = pair

        def set_paused(is_paused: bool) -> None:
            # It may be a new subscription, if the one there was is gone: then not one that begins with new messages.
            policy = {**self._policy(topic, app, self._stage.topics[topic].is_ordered), "is_paused": is_paused}
            self.ask("subscribe", {"topic": topic, "app": app, "consumer": policy, "start": "earliest"})

        set_paused(True)
        self._later(self._rng.randint(100, 1000), "resume", lambda: set_paused(False))

    def _begin_seek(self, topic: str, app: str) -> Callable[[], None]:
        """The app may be anywhere from now on; what is returned is called when that is over."""
        history = self._stage.history
        begun = [(key, history.seek(key)) for key in self._keys(topic, app)]

        def over() -> None:
            for key, release in begun:
                history.sought(key, release, self._stage.end_index(topic, key[2]), self._stage.now_ms())

        return over

    def _seek(self) -> None:
        pair = self._a_subscription()
        if pair is None:
            return
        topic, app = pair
        over = self._begin_seek(topic, app)
        where: Any = self._rng.choice(("latest", "earliest", "time", 5))
        wish = {"topic": topic, "app": app, "to": where, "execute": True}
        if where == "time":
            wish["time_ms"] = self._stage.clock.wall_ms() - 800
        self.ask("seek", wish, lambda is_done: over(), over)

    def _unsubscribe(self) -> None:
        """And subscribed again: it begins anew."""
        pair = self._a_subscription()
        if pair is None:
            return
        topic, app = pair
        over = self._begin_seek(topic, app)
        self._unsubscribed.add(pair)

        def again(is_done: bool) -> None:
            policy = self._policy(topic, app, self._stage.topics[topic].is_ordered)
            wish = {"topic": topic, "app": app, "consumer": policy, "start": "earliest"}
            self.ask("subscribe", wish, lambda is_done: over(), over)

        self.ask("unsubscribe", {"topic": topic, "app": app}, again, over)

    def _subscribe(self) -> None:
        """An app more."""
        number = next(self._late_numbers)
        facts = self._a_topic()
        if facts is None or number >= len(LATE_APPS):
            return
        app, start = LATE_APPS[number], self._rng.choice(("latest", "earliest"))
        stage = self._stage

        def over() -> None:
            if start == "latest":
                for key in self._keys(facts.name, app):
                    standing = stage.history.standing(key)
                    standing.skipped_to = max(standing.skipped_to, stage.end_index(facts.name, key[2]))

        def subscribed(is_done: bool) -> None:
            over()
            if is_done:
                stage.subscriptions.setdefault(app, []).append(facts.name)
                self._come(app)

        self.ask("subscribe", {"topic": facts.name, "app": app, "consumer": {}, "start": start}, subscribed, over)

    def _limit_app(self) -> None:
        app = self._rng.choice(self._apps).partition(".")[0]
        self._limited.add(app)
        self.ask("set_app", {"name": app, "produce_per_second": self._rng.choice((5, 50)), "fetch_per_second": 50})

    # --- messages that wait --------------------------------------------------------------------------------------

    def _cancel_delay(self) -> None:
        """One that waits is not to be delivered."""
        engine, history = self._host.engine, self._stage.history
        if engine is None:
            return
        rows = engine.broker.delaying.rows(None, -1, 50)
        if not rows:
            return
        row = self._rng.choice(rows)
        _, messages = engine.broker.delaying._reader.add_at(row["id"])
        numbers = history.may_cancel(bodies_of(messages))
        now_ms = self._stage.now_ms

        def cancelled(is_done: bool) -> None:
            if is_done:
                history.surely_cancelled.update(dict.fromkeys(numbers, now_ms()))

        self.ask("cancel_delay", {"id": row["id"], "by": "sim"}, cancelled)

    def _resend_dead(self) -> None:
        """A dead letter goes to its app once more; as a copy to its topic if the app is not there just now."""
        engine, history = self._host.engine, self._stage.history
        rows = list(engine.broker.ledger.state.dead_letters.rows()) if engine is not None else []
        if not rows:
            return
        row = self._rng.choice(rows)
        history.may_resend((row.topic_name, row.app, row.partition), row.message_index)
        origin = Origin(f"{row.topic_name}/{row.partition}/{row.message_index}", f"LAKEMQ_DEAD_{row.id}")
        resend = Resend((row.topic_name, row.partition), row.message_index, origin)
        history.resends.append(resend)

        def answered(result: Any, error: LakeMQError | None) -> None:
            if error is not None:
                resend.outcome = "unknown" if error.maybe_written else "failed"
                return
            resend.outcome = "app" if result["outcome"] == RESENT_TO_APP else "topic"
            history.counts[f"resent to {resend.outcome}"] += 1
            may_be_gone = (row.topic_name, row.app) in self._unsubscribed or row.topic_name in history.dropped
            if resend.outcome == "topic" and not may_be_gone:
                violate("I04", f"{row} went to all of its topic, and its app was there all the time: {result}")

        self._ask("resend_dead", {"id": row.id, "by": "sim"}, answered)

    def _retry_now(self) -> None:
        """All that wait to be tried again are tried at once."""
        pair = self._a_subscription()
        if pair is None:
            return
        topic, app = pair
        self._stage.history.hurried.add((topic, app))
        self.ask("retry_now", {"topic": topic, "app": app, "by": "sim", "execute": True})


def _nothing() -> None:
    """Nobody wants to know."""

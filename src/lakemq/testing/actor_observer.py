"""Those who look around: they read by partition, ask where an app stands and all else that can be asked."""

from collections.abc import Callable

from lakemq.testing.actor import Client, Stage, ignore
from lakemq.testing.history import violate
from lakemq.testing.net import Weather
from lakemq.testing.rules import FILTERS
from lakemq.wire.commands import Ack, Command
from lakemq.wire.consume import (
    ACK_INDEX,
    NEWEST_INDEX,
    OLDEST_INDEX,
    CommitAckIndex,
    FetchAckIndex,
    FetchIndex,
    FetchPartitionMessage,
    PartitionFetch,
    PartitionIndex,
    TopicIndexes,
    TopicPartitionFetch,
    TopicPartitions,
)
from lakemq.wire.coordinate import AssignmentWish, FetchAssignedPartition, FindCoordinator
from lakemq.wire.dialect import Form
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.own import FetchRange, PartitionTime, SetFilter, TopicTimes
from lakemq.wire.produce import (
    FetchProduceFeedback,
    ProduceMessageCommit,
    ProduceMessagePrepare,
    ProduceMessageRollback,
)
from lakemq.wire.session import AddProducer, FetchHealth, Heartbeat, RemoveProducer


class Observer(Client):
    """Reads by partition without leases, asks where its app stands, and everything else that can be asked."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        app: str,
        form: Form,
        weather: Weather,
        gap_ms: int,
        *,
        seeks: bool,
        filters: bool = False,
    ) -> None:
        super().__init__(stage, name, app, form, weather)
        self._gap_ms = gap_ms
        self._seeks = seeks
        self._filters = filters and not self.is_joyqueue
        self._next: dict[tuple[str, int], int] = {}

    def introduced(self) -> None:
        self._go_on()

    def _go_on(self) -> None:
        if not self.stage.is_calm:
            topics = self.stage.topics_of(self.app)
            if topics:
                self._look(self.stage.rng.choice(topics))
        self._later_on(self.stage.rng.randint(1, 2 * self._gap_ms), "look", self._go_on)

    def _look(self, topic: str) -> None:
        draw = self.stage.rng.random()
        if draw < 0.45:
            self.read(topic, self.stage.rng.randrange(self.stage.topics[topic].partitions))
        elif draw < 0.75:
            self._stand(topic)
        elif draw < 0.78 and self._seeks:
            self._seek(topic)
        elif draw < 0.8 and self._filters:
            self._filter(topic)
        else:
            self._chat(topic)

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, topic: str, partition: int, then: Callable[[], None] | None = None) -> None:
        """Read on in one partition."""
        index = self._next.get((topic, partition), 0)
        if self.stage.rng.random() < 0.1 and then is None:
            index = ACK_INDEX
        wish = PartitionFetch(partition, self.stage.rng.randint(1, 30), index)

        def fetched(status: int, ack: Ack | None) -> None:
            if ack is not None:
                told = ack.topics[0].partitions[0]
                _, found = self.open_block(topic, told.messages, partition)
                self.stage.history.run_of(topic, partition, found, index if index >= 0 else None)
                if found and index >= 0:
                    self._next[topic, partition] = found[-1].index + 1
                elif told.code == 184:
                    self._stand(topic)
            if then is not None:
                then()

        self.ask(FetchPartitionMessage((TopicPartitionFetch(topic, (wish,)),), self.app), fetched)

    def _stand(self, topic: str) -> None:
        history, rng = self.stage.history, self.stage.rng
        partitions = tuple(range(self.stage.topics[topic].partitions))
        asked = {partition: history.ask((topic, self.app, partition)) for partition in partitions}

        def told_range(status: int, ack: Ack | None) -> None:
            for one in ack.topics[0].partitions if ack is not None else ():
                if one.code:
                    continue
                # What is told as the end is durable; an app may be further if it sees more than that.
                is_within = one.ack_index <= one.visible_index or self.stage.shows_written
                if one.first_index > one.ack_index or not is_within:
                    violate("I13", f"{topic}, {self.app}: {one}")
                self._next.setdefault((topic, one.partition), one.first_index)
                self._next[topic, one.partition] = max(self._next[topic, one.partition], one.first_index)
                history.told((topic, self.app, one.partition), asked[one.partition], one.ack_index, one.first_index)

        def told(status: int, ack: Ack | None) -> None:
            for one in ack.topics[0].partitions if ack is not None else ():
                if one.code == 0:
                    # Without the oldest index nobody can say what retention has passed over.
                    first = one.left_index if one.left_index >= 0 else one.index
                    history.told((topic, self.app, one.partition), asked[one.partition], one.index, first)

        wish = (TopicPartitions(topic, partitions),)
        if self.is_joyqueue:
            self.ask(FetchIndex(wish, self.app), told)
        elif rng.random() < 0.6:
            times = tuple(PartitionTime(one, rng.choice((-1, self.stage.clock.wall_ms() - 500))) for one in partitions)
            self.ask(FetchRange((TopicTimes(topic, times),), self.app), told_range)
        else:
            self.ask(rng.choice((FetchIndex, FetchAckIndex))(wish, self.app), told)

    def _seek(self, topic: str) -> None:
        """Move the whole app: somewhere, to the oldest, to the newest."""
        rng, history = self.stage.rng, self.stage.history
        partition = rng.randrange(self.stage.topics[topic].partitions)
        key = topic, self.app, partition
        index = rng.choice((NEWEST_INDEX, OLDEST_INDEX, OLDEST_INDEX, rng.randint(0, 50)))
        release = history.seek(key)
        history.counts["seeks"] += 1

        def over() -> None:
            history.sought(key, release, self.stage.end_index(topic, partition), self.stage.now_ms())

        command = CommitAckIndex((TopicIndexes(topic, (PartitionIndex(partition, index),)),), self.app)
        self.ask(command, lambda status, ack: over(), over)

    def _filter(self, topic: str) -> None:
        """The app wants other messages from now on."""
        text = self.stage.rng.choice(list(FILTERS))
        self.stage.history.rules_of(topic, self.app).filters.add(text)
        self.ask(SetFilter(topic, self.app, text), ignore)

    # --- everything else -------------------------------------------------------------------------------------------

    def _chat(self, topic: str) -> None:
        app = self.app
        questions: list[Command] = [
            Heartbeat(),
            FetchHealth(),
            FetchCluster((topic, "nowhere.to-be-found"), app),
            FindCoordinator((topic,), app),
            FetchAssignedPartition((AssignmentWish(topic, 5000, False),), app),
            AddProducer((topic,), app, 2),
            RemoveProducer((topic,), app),
            ProduceMessagePrepare(topic, app, 1, "tx", 0),
            ProduceMessageCommit(topic, app, "tx"),
            ProduceMessageRollback(topic, app, "tx"),
            FetchProduceFeedback(app, topic, 0, 5, 0),
        ]
        self.ask(self.stage.rng.choice(questions), ignore)


class Auditor(Client):
    """Reads everything there is, once."""

    def __init__(self, stage: Stage, app: str) -> None:
        super().__init__(stage, "auditor", app, Form(), Weather())
        self.found: dict[tuple[str, int], tuple[int, list[int]]] = {}  # first index, payloads
        self.is_done = False
        self._left: list[str] = []

    def introduced(self) -> None:
        self._left = [one.name for one in self.stage.living_topics()]
        self._next_topic()

    def _next_topic(self) -> None:
        if not self._left:
            self.is_done = True
            return
        self._measure(self._left.pop())

    def _measure(self, topic: str) -> None:
        def told(status: int, ack: Ack | None) -> None:
            if ack is None or ack.topics[0].code:
                violate("I15", f"{topic} cannot be read at the end: {status} {ack}")
                return
            ends = {one.partition: (one.first_index, one.visible_index) for one in ack.topics[0].partitions}
            for partition, (first, _) in ends.items():
                self.found[topic, partition] = first, []
            self._read(topic, ends)

        self.ask(FetchRange((TopicTimes(topic),), self.app), told)

    def _read(self, topic: str, ends: dict[int, tuple[int, int]]) -> None:
        """All partitions at once, until each is at its end."""
        wishes = []
        for partition, (_, end) in ends.items():
            first, payloads = self.found[topic, partition]
            if first + len(payloads) < end:
                wishes.append(PartitionFetch(partition, 1000, first + len(payloads)))
        if not wishes:
            self._next_topic()
            return

        def fetched(status: int, ack: Ack | None) -> None:
            if any(one.code == 184 for one in ack.topics[0].partitions) if ack is not None else False:
                self._measure(topic)  # retention went by
                return
            count = 0
            for one in ack.topics[0].partitions if ack is not None else ():
                first, payloads = self.found[topic, one.partition]
                at = first + len(payloads)
                _, found = self.open_block(topic, one.messages, one.partition)
                self.stage.history.run_of(topic, one.partition, found, at)
                if one.code:
                    violate("I02", f"{topic}/{one.partition}/{at} cannot be read: code {one.code}")
                payloads += [each.payload for each in found if each.index >= at]
                count += len(found)
            if not count:  # one partition may fill the answer, and leave nothing for the others
                violate("I02", f"{topic} cannot be read on from {wishes}: status {status}, {ack}")
            self._read(topic, ends)

        self.ask(FetchPartitionMessage((TopicPartitionFetch(topic, tuple(wishes)),), self.app), fetched)

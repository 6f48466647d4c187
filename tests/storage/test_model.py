"""The whole engine against lists in memory: any order of appends, syncs, crashes, starts and drops."""

import dataclasses
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from fix_disk import put
from fix_storage import TINY, A, B, C
from lakemq.errors import IndexOutOfRangeError, ServiceUnavailableError
from lakemq.storage.config import VISIBLE_AFTER
from lakemq.storage.journal_record import RecordType
from lakemq.storage.retention import RetentionPolicy
from lakemq.testing.crash import MODES
from storage.fix_fold import FoldEngine

KEYS = st.sampled_from((A, B, C))
BODIES = st.lists(
    st.one_of(
        st.integers(0, 300).map(lambda size: b"m" * size),
        st.lists(st.integers(0, 60).map(lambda size: b"b" * size), min_size=1, max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=3,
)
SEEDS = st.integers(0, 1 << 16)


class StorageModel(RuleBasedStateMachine):
    """Holders are drawn from positions that records were put at; indexes to read from those that were given out."""

    places = Bundle("places")
    holders = Bundle("holders")

    @initialize(
        entries_per_file=st.sampled_from((1, 4, 50)),
        pending_count=st.sampled_from((0, 3, 100)),
        segment_bytes=st.sampled_from((3, 8)),
        maps_segments=st.booleans(),
        checkpoint_bytes=st.sampled_from((500, 6000)),
        padding_bytes=st.sampled_from((0, 40, 600)),
        visible_after=st.sampled_from(VISIBLE_AFTER),
    )
    def begin(
        self,
        entries_per_file,
        pending_count,
        segment_bytes,
        maps_segments,
        checkpoint_bytes,
        padding_bytes,
        visible_after,
    ):
        self.engine = FoldEngine(
            padding_bytes=padding_bytes if segment_bytes > 3 else 0,
            config=dataclasses.replace(
                TINY,
                segment_bytes=segment_bytes << 10,
                entries_per_file=entries_per_file,
                index_pending_bytes_max=pending_count * 48,
                maps_segments=maps_segments,
                visible_after=visible_after,
                checkpoint_bytes=checkpoint_bytes,
            ),
        )
        self.held = {}
        self.strays = set()

    # Work.

    @rule(target=places, key=KEYS, bodies=BODIES, starts_term=st.booleans())
    def append(self, key, bodies, starts_term):
        self.engine.term += starts_term
        try:
            record = self.engine.append(key, *bodies)
        except ServiceUnavailableError:
            self.engine.flush()
            self.engine.sync()
            record = self.engine.append(key, *bodies)
        return key, record.first_index, record.position

    @rule(key=KEYS, payload=st.binary(max_size=30))
    def append_fact(self, key, payload):
        if self.engine.group.journal.unsynced_bytes < 15_000:
            self.engine.append_control(RecordType.ACK, payload, key)

    @rule()
    def flush(self):
        self.engine.flush()

    @rule()
    def sync(self):
        self.engine.flush()
        changed = self.engine.sync()
        assert len(changed) == len(set(changed))

    @rule(key=KEYS, bodies=BODIES)
    def append_while_a_sync_is_under_way(self, key, bodies):
        engine = self.engine
        ticket = engine.group.begin_sync()
        if engine.group.journal.unsynced_bytes < 15_000:
            engine.append(key, *bodies)
            engine.flush()
        if ticket is not None:
            ticket.run()
            engine.group.end_sync(ticket)
            engine.oracle.sync(ticket.position)

    @rule()
    def checkpoint(self):
        self.engine.flush()
        self.engine.checkpoint()

    @rule(target=holders, place=places)
    def hold(self, place):
        position = min(place[2], self.engine.group.journal.end_position)
        name = f"holder {len(self.held)} {position}"
        self.held[name] = position
        self.engine.group.hold(name, position)
        return name

    @rule(name=consumes(holders))
    def let_go(self, name):
        self.held.pop(name, None)
        self.engine.group.let_go(name)

    @rule(kept=st.integers(0, 3))
    def retain(self, kept):
        group = self.engine.group
        limit = min([group.checkpoint_position, *self.held.values()])
        count = group.retain(RetentionPolicy(size_bytes=kept * self.engine.config.segment_bytes), self.engine.now_ms)
        assert group.journal.first_position <= max(limit, self.engine.oracle.kept_from)
        assert count >= 0
        self.engine.oracle.drop(group.journal.first_position)

    # Reading.

    @rule(place=places, index_count=st.integers(1, 9), bytes_max=st.sampled_from((1, 500, 1 << 20)))
    def read(self, place, index_count, bytes_max):
        key, index, _ = place
        group, known = self.engine.group, self.engine.oracle.of(place[0])
        try:
            slices = self.engine.read(key, index, index_count, bytes_max)
        except IndexOutOfRangeError:
            assert not group.first_index(*key) <= index <= group.visible_index(*key)
            return
        whole = b"".join(one.payload for one in known)
        for one in slices:
            assert bytes(one.messages) in whole
        assert bool(slices) == (index < group.visible_index(*key))
        if slices:
            assert slices[0].first_index <= index < slices[0].next_index

    @rule(key=KEYS, ago_ms=st.integers(-20, 500))
    def find_by_time(self, key, ago_ms):
        group, when = self.engine.group, self.engine.now_ms - ago_ms
        if key in self.engine.oracle.partitions():
            first = group.first_index(*key)
            assert group.index_of_time(*key, when) == self.engine.oracle.index_of_time(key, when, first)

    @rule(index_count=st.sampled_from((1, 4)), bytes_max=st.sampled_from((1, 300)))
    def read_everything(self, index_count, bytes_max):
        self.engine.check(index_count=index_count, bytes_max=bytes_max)

    # Ends and starts.

    @rule(seed=SEEDS, mode=st.sampled_from(MODES))
    def lose_power(self, seed, mode):
        self.engine.disk.lose_power(Random(seed), mode=mode)
        self.start(is_power_lost=True)

    @rule()
    def kill(self):
        self.engine.disk.lose_process()
        self.start()

    @rule()
    def end_in_peace(self):
        self.engine.flush()
        self.engine.group.close()
        self.engine.oracle.sync(self.engine.group.journal.end_position)
        self.start()

    @precondition(lambda self: len(self.strays) < 3)
    @rule(directory=st.sampled_from(("journal", "index", "index/1")))
    def find_a_stray_file(self, directory):
        engine = self.engine
        engine.flush()
        engine.group.close()
        content = b"stray %d" % len(self.strays)
        self.strays.add(content)
        engine.disk.make_dir(directory)
        put(engine.disk, f"{directory}/stray", content)
        self.start()
        assert not engine.disk.exists(f"{directory}/stray")

    def start(self, *, is_power_lost=False):
        self.held = {}  # its owners come back and say so again
        self.engine.open(is_power_lost=is_power_lost)

    # What always holds.

    @invariant()
    def everything_is_as_the_lists_say(self):
        if hasattr(self, "engine"):
            self.engine.check()

    @invariant()
    def nothing_unknown_was_deleted(self):
        if not hasattr(self, "engine"):
            return
        disk = self.engine.disk
        kept = {disk.open(f"quarantine/{name}").read_at(0, 99) for name in disk.names("quarantine") if "stray" in name}
        assert kept == self.strays

    def teardown(self):
        """Whatever happened: what is acked now is there after a last power loss, and the store goes on."""
        if not hasattr(self, "engine"):
            return
        self.sync()
        for key in (A, B, C):
            self.engine.put(key, b"last")
        self.engine.lose_power(1, "nothing")
        for key in (A, B, C):
            assert self.engine.group.visible_index(*key) == self.engine.oracle.next_index(key)


StorageModel.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_the_engine_is_what_the_lists_are = pytest.mark.sim(StorageModel.TestCase)

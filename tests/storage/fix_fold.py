"""Engines for tests whose owner keeps a fold, and holds it against the oracle at every start."""

from faults.crash_states import Store
from fix_storage import TINY, Engine
from lakemq.errors import WriteError
from lakemq.storage.recovery import open_group
from lakemq.testing.storage_model import TallyFold


class FoldEngine(Engine):
    """An engine with a fold. A life begins with an empty one."""

    def __init__(self, disk=None, config=TINY, *, padding_bytes=0):
        self.padding_bytes = padding_bytes
        super().__init__(disk, config)

    def open(self, *, is_power_lost=False):
        self.fold = TallyFold(self.padding_bytes)
        self.group = open_group(self.disk, self.config, self.fold)
        self.oracle.check_recovered(self.group, is_power_lost=is_power_lost)
        self.oracle.check_fold(self.fold)

    def append(self, key, *bodies, **details):
        stored = super().append(key, *bodies, **details)
        self.fold.add(stored)
        return stored

    def append_control(self, kind, payload, key=(0, 0)):
        stored = super().append_control(kind, payload, key)
        self.fold.add(stored)
        return stored

    def refuse(self):
        """This turn's flush has failed."""
        self.oracle.refuse(self.group.journal.written_position)
        self.fold.count_again(self.oracle.records)

    def on_a_copy(self):
        """The same store, with nobody running on it."""
        twin = FoldEngine.__new__(FoldEngine)
        twin.__dict__.update(self.__dict__)
        twin.disk, twin.oracle = self.disk.clone(), self.oracle.copy()
        return twin


class FoldStore(Store):
    """Random work, crashes and all, by an owner with a fold."""

    def __init__(self, seed, config=None, *, has_faults=True):
        super().__init__(seed, config, has_faults=has_faults)
        self.padding_bytes = self.rng.choice((0, 0, 50, 1200))

    def start(self):
        self.group = None
        self.fold = TallyFold(self.padding_bytes)
        self.group = open_group(self.disk, self.config, self.fold)
        self.oracle.check_recovered(self.group, is_power_lost=self.is_power_lost)
        self.oracle.check_fold(self.fold)
        self.is_power_lost = False

    def append(self):
        """One append. Without room for a segment it alone is refused, and the turn goes on."""
        end = self.running().journal.end_position
        try:
            super().append()
        except WriteError:
            if self.running().journal.end_position < end or self.running().journal.failure is not None:
                raise  # all of the turn, as its flush will say
            self.seen["one refused"] += 1
            return
        self.fold.add(self.oracle.records[-1])

    def turn(self):
        refused_count = self.seen["refused"]
        super().turn()
        if self.seen["refused"] > refused_count:
            self.fold.count_again(self.oracle.records)

    def checkpoint(self):
        super().checkpoint()
        if self.group.journal.synced_position < self.group.journal.end_position:
            self.seen["checkpoint under load"] += 1

    def retain(self):
        before = self.group.journal.first_position
        super().retain()
        assert before <= self.group.journal.first_position <= max(before, self.group.checkpoint_position)

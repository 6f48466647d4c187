"""What breaks in the simulation: process, power, disk, network, clock (reliability.md, section 6)."""

import errno
from collections.abc import Callable
from random import Random

from lakemq.broker.events import StopAsked
from lakemq.testing.actor import Client, Stage
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import SimDisk
from lakemq.testing.host import Host

_HOUR_MS = 3_600_000
_JUMPS_MS = (-_HOUR_MS, _HOUR_MS, -72 * _HOUR_MS)
_AIM_MS = 1500


class Troubles:
    """One method per fault of `plan.FAULTS`."""

    def __init__(
        self, rng: Random, clock: SimClock, disk: SimDisk, host: Host, stage: Stage, clients: list[Client]
    ) -> None:
        self._rng = rng
        self._clock = clock
        self._disk = disk
        self._host = host
        self._stage = stage
        self._clients = clients
        self.kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "power": self._power,
            "crash": self._crash,
            "crash on ack": self._crash_on_ack,
            "stop": self.stop,
            "disk full": self._fill_disk,
            "write error": self._fail_write,
            "sync error": self._fail_sync,
            "side error": self._fail_side,
            "slow sync": self._slow_sync,
            "cut": lambda: self._someone().cut(loses_reply=False),
            "reply lost": lambda: self._someone().cut(loses_reply=True),
            "clock jump": lambda: self._clock.jump_wall(self._rng.choice(_JUMPS_MS)),
        }

    def heal(self) -> None:
        """Nothing of it goes on."""
        self._disk.faults.clear()
        self._disk.capacity_bytes = None
        self._disk.crash_after = None
        self._host.slow_sync_ms = self._host.crashes_in_recovery = 0

    # --- the process and the power -------------------------------------------------------------------------------

    def _kill(self) -> None:
        self._host.die("kill")

    def _power(self) -> None:
        self._host.die("power")

    def _crash(self) -> None:
        """At one of the next disk operations; the next starts may end like that too (F02, F03)."""
        self._host.dies_by = self._rng.choice(("kill", "power"))
        self._host.crashes_in_recovery = self._rng.choice((0, 0, 1, 3))
        self._disk.crash_after = self._disk.crash_points + self._rng.choice((0, 0, 1, 2, 5, 12, 30))

    def _crash_on_ack(self) -> None:
        """When the next client hears that its message, or its ack, is safe, it had better be."""
        counts = self._stage.history.counts
        answer, by = self._rng.choice((("send ok", "power"), ("send ok", "power"), ("ack ok", "kill")))
        seen, until_ms = counts[answer], self._clock.monotonic_ms() + _AIM_MS

        def look() -> None:
            if self._stage.is_calm:
                return
            if counts[answer] > seen:
                self._host.die(by)
            elif self._clock.monotonic_ms() < until_ms:
                self._stage.at(1, "aim", look)

        look()

    def stop(self) -> None:
        """In peace (F06)."""
        self._host.act("stop", lambda engine: engine.handle(StopAsked()))

    # --- the disk --------------------------------------------------------------------------------------------------

    def _fill_disk(self) -> None:
        """No room for a new file, or not even within one (F18)."""
        if self._rng.random() < 0.6:
            for _ in range(self._rng.randint(1, 6)):
                error = OSError(errno.ENOSPC, "planned")
                wrote, after = self._rng.choice((0, 30, 200, 2000)), self._rng.choice((0, 0, 1, 3))
                self._disk.fail("write", error, path_contains="journal/", wrote=wrote, after=after)
            return
        self._disk.capacity_bytes = self._disk.used_bytes() + self._rng.choice((0, 100, 3000, 20_000))

        def enough() -> None:
            self._disk.capacity_bytes = None

        self._stage.at(self._rng.randint(50, 1200), "room again", enough)

    def _fail_write(self) -> None:
        error = OSError(errno.EIO, "planned")
        self._disk.fail("write", error, path_contains="journal/", wrote=self._rng.choice((0, 30, 200)))

    def _fail_sync(self) -> None:
        error = OSError(errno.EIO, "planned")
        self._disk.fail("sync", error, path_contains="journal/", wrote=self._rng.randrange(3))

    def _fail_side(self) -> None:
        """Of a file that is made again from the journal."""
        error = OSError(self._rng.choice((errno.EIO, errno.ENOSPC)), "planned")
        path = self._rng.choice(("index/", "checkpoint"))
        operation = self._rng.choice(("write", "sync", "rename", "create"))
        self._disk.fail(operation, error, path_contains=path, times=self._rng.choice((1, 3)))

    def _slow_sync(self) -> None:
        self._host.slow_sync_ms = self._rng.choice((500, 1800, 4000))

    # --- the network -------------------------------------------------------------------------------------------------

    def _someone(self) -> Client:
        return self._rng.choice([one for one in self._clients if one.is_connected] or self._clients)

"""The archive under kill -9: drivers, Python workers and executors, many times, over many rows; right after each.

    python -m tests.faults.archive_kills [--kills 50] [--rows 1000000]

A broker with one archived topic, a standalone cluster of two workers. The archive job is started again and again, and
something of it is killed: the driver before a commit, after one, or at any moment; a Python worker; an executor. After
each kill the lake is verified: every offset up to the position once, with the right bytes. Where all rows are archived
before all kills are done, more are sent. At the end all rows must be there.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fix_cluster import Cluster
from tests.fix_live import LiveBroker

import lakemq
from lakemq.pipeline.lake import Lake, LakeNotFoundError, verify

RUN = Path(__file__).parent.parent / "pipeline" / "archive_run.py"
TOPIC = "orders"
PARTITIONS = 4
KINDS = ("before a commit", "worker", "executor", "after a commit", "any moment")
RUN_S = 300


class ArchiveKills:
    """One fault run."""

    def __init__(self, directory, kills, rows, say=print):
        self._directory = Path(directory)
        self._lake = self._directory / "lake"
        self._kills, self._rows = kills, rows
        self.sent = 0
        self._say = say
        self._dice = random.Random(7)
        self.killed = dict.fromkeys(KINDS, 0)

    def run(self):
        """All kills, then the rest; how many rows there are in the end."""
        broker = LiveBroker(self._directory / "broker").start()
        cluster = Cluster(self._directory)
        try:
            self._url = f"lakemq://127.0.0.1:{broker.port}"
            self._fill(broker, self._rows)
            cluster.start()
            self._cluster = cluster
            done = 0
            while done < self._kills:
                if self._archived() == self.sent:
                    self._fill(broker, self._rows // 10)
                kind = KINDS[done % len(KINDS)]
                if self._kill(kind):
                    done += 1
                    self.killed[kind] += 1
                    self._say(f"{done} of {self._kills}: {kind}; {self._archived()} rows archived, verified")
                self._verify()
            self._finish()
            return self._archived()
        finally:
            cluster.stop()
            broker.stop()

    def _fill(self, broker, count):
        admin = f"http://127.0.0.1:{broker.admin_port}"
        with lakemq.connect(self._url, app="shop", admin_url=admin, admin_token=broker.admin_token) as mq:
            mq.admin.ensure_topic(TOPIC, partitions=PARTITIONS, is_archived=True)
            for number in range(self.sent, self.sent + count):
                mq.send_soon(
                    TOPIC, b"row %d of a topic that is archived while all is killed" % number, key=f"k{number}"
                )
            mq.flush("120s")
        self.sent += count

    def _start(self, step="never", count=0):
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environment["LAKEMQ_ARCHIVE_BATCH"] = str(max(self._rows // (3 * self._kills), 200))
        command = [sys.executable, str(RUN), self._url, str(self._lake), step, str(count), self._cluster.master]
        log = (self._directory / "driver.log").open("ab")
        with log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def _kill(self, kind):
        """Whether something was killed before the run was over."""
        if kind in ("before a commit", "after a commit"):
            step = "written" if kind == "before a commit" else "committed"
            return self._start(step, self._dice.randint(1, 3)).wait(RUN_S) == -signal.SIGKILL
        driver = self._start()
        try:
            return self._kill_part(kind, driver)
        finally:
            self._wait(driver)

    def _kill_part(self, kind, driver):
        """Once it archives, kill what is wanted; a run survives the loss of workers and executors, mostly."""
        before = self._archived()
        deadline = time.monotonic() + RUN_S
        while time.monotonic() < deadline and driver.poll() is None:
            time.sleep(0.05)
            if self._archived() <= before:
                continue
            time.sleep(self._dice.random())
            targets = {"any moment": lambda: [driver.pid], "executor": self._cluster.executors}.get(
                kind, self._workers
            )()
            for pid in targets[:1]:
                try:
                    os.kill(pid, signal.SIGKILL)
                    return True
                except ProcessLookupError:
                    break
        return False

    def _workers(self):
        """Python processes that our executors run tasks in."""
        executors = set(self._cluster.executors())
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, ProcessLookupError):
                    continue
        daemons = {pid for pid, parent in parents.items() if parent in executors}
        return [pid for pid, parent in parents.items() if parent in daemons]

    def _wait(self, driver):
        """A few kills at most per run: end it, as an operator would."""
        try:
            driver.wait(self._dice.uniform(1, 6))
        except subprocess.TimeoutExpired:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait(30)

    def _archived(self):
        try:
            return sum(self._open().snapshot().positions("messages").values())
        except LakeNotFoundError:
            return 0
        except Exception:  # it is being made at this moment
            return 0

    def _open(self):
        return Lake.open(str(self._lake))

    def _verify(self):
        report = verify(self._open())
        if report.problem_count:
            raise AssertionError(f"after a kill: {[str(one) for one in report.problems[:5]]}")

    def _finish(self):
        for _ in range(3):
            if self._start().wait(RUN_S) == 0:
                break
        self._verify()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1_000_000)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lakemq-archive-kills-") as directory:
        kills = ArchiveKills(directory, given.kills, given.rows, lambda text: sys.stdout.write(text + "\n"))
        rows = kills.run()
    sys.stdout.write(
        f"{sum(kills.killed.values())} kills {kills.killed}, {rows} rows, {time.monotonic() - began:.0f} s\n"
    )
    return 0 if rows == kills.sent and sum(kills.killed.values()) == given.kills else 1


if __name__ == "__main__":
    sys.exit(main())

"""The same jobs on a real standalone cluster: a master and two workers, started from the pip-installed Spark."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyspark

from lakemq.pipeline.archive_plan import told_positions
from lakemq.pipeline.archiving import ARCHIVE_APP
from lakemq.pipeline.errors import SparkMissingError
from lakemq.pipeline.lake import Lake, verify
from lakemq.pipeline.options import Server
from lakemq.pipeline.session import check_java

RUN = Path(__file__).parent / "archive_run.py"
START_S = 60
pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.xdist_group("spark")]


class Cluster:
    """A master and two workers on loopback; ended by their process ids."""

    def __init__(self, directory):
        self._directory = directory
        self._processes = []
        self.master = ""

    def start(self):
        log = self._launch("master", "org.apache.spark.deploy.master.Master", "--port", "0", "--webui-port", "0")
        self.master = self._wait_for(log, r"(spark://127\.0\.0\.1:\d+)")
        for number in (1, 2):
            log = self._launch(
                f"worker{number}",
                *("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--port", "0"),
                *("--webui-port", "0", "--work-dir", str(self._directory / f"work{number}"), self.master),
            )
            self._wait_for(log, r"(Successfully registered with master)")

    def _launch(self, name, main, *arguments):
        home = Path(pyspark.__file__).parent
        log = self._directory / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
        }
        host = ("--host", "127.0.0.1")
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), main, *host, *arguments],
                    stdout=out,
                    stderr=out,
                    env=environment,
                    cwd=self._directory,
                    start_new_session=True,
                )
            )
        return log

    def _wait_for(self, log, pattern):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            found = re.search(pattern, log.read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.1)
        raise AssertionError(f"{pattern} is not in {log}\n{log.read_text(errors='replace')[-3000:]}")

    def executors(self):
        """The processes that run tasks: children of our workers."""
        found = []
        parents = {process.pid for process in self._processes}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (entry / "cmdline").read_bytes()
                except (OSError, ProcessLookupError):
                    continue
                if parent in parents and b"CoarseGrainedExecutorBackend" in command:
                    found.append(int(entry.name))
        return found

    def stop(self):
        for process in reversed(self._processes):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait(10)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    try:
        check_java()
    except SparkMissingError as error:
        pytest.skip(str(error))
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_the_archive_runs_on_two_workers_and_an_executor_may_die(cluster, topics, tmp_path):
    topic = topics.make(partitions=4, is_archived=True)
    topics.fill(topic, 20_000, body=lambda n: b"%d" % n + b" " * 200)
    command = [sys.executable, str(RUN), topics.url, str(tmp_path), "never", "0", cluster.master]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    killed = kill_one_executor(cluster, driver, tmp_path)
    assert driver.wait(240) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert killed, "an executor was there to be killed"
    lake = Lake.open(str(tmp_path))
    report = verify(lake, told_positions(Server(topics.url, ARCHIVE_APP)))
    assert [str(problem) for problem in report.problems] == []
    assert report.rows["messages"] >= 20_000


def kill_one_executor(cluster, driver, path):
    """As soon as something is archived, so that it dies in the middle."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and driver.poll() is None:
        executors = cluster.executors()
        if executors and (path / "messages" / "_delta_log" / f"{1:020d}.json").exists():
            os.kill(executors[0], signal.SIGKILL)
            return True
        time.sleep(0.05)
    return False

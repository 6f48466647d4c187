"""The same jobs on a real standalone cluster: a master and two workers, started from the pip-installed Spark."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")


from fix_cluster import Cluster
from lakemq.pipeline.archive_plan import told_positions
from lakemq.pipeline.archiving import ARCHIVE_APP
from lakemq.pipeline.errors import SparkMissingError
from lakemq.pipeline.lake import Lake, verify
from lakemq.pipeline.options import Server
from lakemq.pipeline.session import check_java

RUN = Path(__file__).parent / "archive_run.py"
pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.xdist_group("spark")]


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
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "LAKEMQ_SHIP": "1"}
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    killed = kill_one_executor(cluster, driver, tmp_path)
    assert driver.wait(240) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert killed, "an executor was there to be killed"
    assert "lakemq.zip/lakemq/__init__.py" in (tmp_path / "driver.log").read_text(), "the code came with the job"
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

"""A standalone Spark cluster on loopback, started from the pip-installed Spark and ended by its process ids."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

START_S = 60


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
        import pyspark

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

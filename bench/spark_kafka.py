"""Our Spark source beside Spark's own Kafka source: the same rows, one session, in turns.

    python bench/spark_kafka.py [--quick] [--json]

A broker of each kind holds the same messages in four partitions; both are read whole into Spark's noop sink on
`local[2]`, and the best of each counts. Spark's Kafka connector is published apart from Spark, and not for every
version: this runs in an environment of its own, with the newest Spark that both sources run on. What it needs comes by
package name, from PyPI and Maven.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from pyspark.sql import SparkSession

from client import Broker
from lakemq.pipeline.session import session
from peers.kafka import Kafka
from peers.model import Durability, PeerError, say
from peers.packages import cache, maven
from spark import PARTITIONS, drain, fill, turns

from measure import Result, arguments, report

SPARK = "4.2.0"
# The connector's helper for the tokens of a secured cluster, which nothing here uses, is not to be had for that version
# everywhere: an older one takes its place.
CONNECTOR = [
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
]
ROOT = Path(__file__).parent.parent
AIM = 1.0


def environment() -> Path:
    """The Python of an environment with that Spark and LakeMQ as it is now."""
    home = cache() / f"spark-{SPARK}"
    python = home / "bin" / "python"
    if not python.exists():
        say(f"making an environment with pyspark {SPARK}")
        venv.create(home, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*install, f"{ROOT}[spark]", f"pyspark=={SPARK}"], check=False)
    if done.returncode:
        raise PeerError(f"pip could not install pyspark {SPARK}; is PyPI within reach?")
    return python


def beside(spark: SparkSession, url: str, port: int, topic: str, count: int, rounds: int) -> Result:
    """Both read the topic whole, in turns, once it is with Kafka too: Spark itself carries it over."""
    there = {"kafka.bootstrap.servers": f"127.0.0.1:{port}"}
    ours = spark.read.format("lakemq").options(servers=url, subscribe=topic)
    theirs = spark.read.format("kafka").options(subscribe=topic, **there)
    ours.load().select("value").write.format("kafka").options(topic=topic, **there).save()
    assert theirs.load().count() == ours.load().count() == count
    best = turns({"kafka": lambda: drain(theirs.load()), "lakemq": lambda: drain(ours.load())}, rounds)
    rows = {name: count / spent for name, spent in best.items()}
    ratio = rows["lakemq"] / rows["kafka"]
    return Result(f"source {topic[1:]} B", rows["lakemq"], "rows/s", rows["kafka"], ratio, f"≥ {AIM:g}", ratio >= AIM)


def measure(is_quick: bool) -> list[Result]:
    sizes = {1024: 100_000, 100: 400_000} if is_quick else {1024: 400_000, 100: 2_000_000}
    results = []
    broker, peer = Broker(), Kafka()
    directory = Path(tempfile.mkdtemp(prefix="spark-kafka-"))
    running = peer.start(directory, Durability.CACHE, sorted(os.sched_getaffinity(0)))
    try:
        jars = ",".join(map(str, maven(CONNECTOR)))
        spark = session("local[2]", "bench", {"spark.jars": jars, "spark.driver.memory": "2g"})
        for size, count in sizes.items():
            topic = f"r{size}"
            fill(broker.url, topic, count, size)
            peer.create_topics(running, [topic], PARTITIONS)
            results.append(beside(spark, broker.url, running.port, topic, count, 3 if is_quick else 5))
        spark.stop()
    finally:
        running.stop()
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return results


def main() -> int:
    if "--inside" in sys.argv:
        sys.argv.remove("--inside")
        options = arguments(__doc__ or "")
        report(measure(options.quick), options.json)
        return 0
    arguments(__doc__ or "")
    try:
        Kafka().install()
        maven(CONNECTOR)
        python = environment()
    except PeerError as error:
        say(f"cannot be measured here: {error}")
        return 0
    # Spark's workers are started by name.
    found = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([str(python), __file__, "--inside", *sys.argv[1:]], env=found, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

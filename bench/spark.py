"""The pipeline on `local[2]`, against what Spark itself does with the same rows in Parquet, in the same run.

    python bench/spark.py [--quick] [--json]

source: rows read from a broker process into Spark's noop sink, 1 KB and 100 B each, against Spark's own scan of the
same columns of the same rows from zstd Parquet; then once more with all columns that can be asked for. archive: a topic
into an empty lake, end to end (fetch, decode, write, sync, commit), against Spark copying the same rows from Parquet to
Parquet, partitioned alike. seek: 1 000 offsets out of many, after the session is up. Cases take turns, and the best of
each counts: the machine is shared.

Sources are warmed up by a first read that is not counted. What events cost a producer is in `bench/events.py`.
"""

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import lakemq
from client import Broker
from lakemq.pipeline.archiving import ARCHIVE_APP, Archive, ArchiveSettings
from lakemq.pipeline.options import Server
from lakemq.pipeline.session import session

from measure import Result, arguments, report

PARTITIONS = 4
WORDS = ["order", "paid", "sku", "warehouse", "user", "city", "amount", "true", "express", "coupon", "beijing"]


def pool(size: int) -> bytes:
    """Text that compresses about threefold, as JSON does."""
    chance = random.Random(7)
    text = ""
    while len(text) < size:
        text += f'"{chance.choice(WORDS)}":{chance.randrange(1 << 40)},'
    return text.encode()


def fill(url: str, topic: str, count: int, size: int) -> None:
    text = pool(1 << 20)
    chance = random.Random(1)
    with lakemq.connect(url, app="bench", compression="none", acks="write", linger_ms=5) as mq:
        for number in range(count):
            at = chance.randrange(len(text) - 2 * size)
            mq.send_soon(topic, text[at : at + size], partition=number % PARTITIONS)
        mq.flush("120s")


def seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def turns(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best time of each, taken in turns."""
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for name, act in cases.items():
            best[name] = min(best[name], seconds(act))
    return best


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


class SparkBench:
    """A broker, a session, and a directory for tables."""

    def __init__(self, spark: SparkSession, url: str, directory: Path) -> None:
        self._spark = spark
        self._url = url
        self._directory = directory

    def source(self, topic: str, **options: str) -> DataFrame:
        return self._spark.read.format("lakemq").options(servers=self._url, subscribe=topic, **options).load()

    def scan(self, size: int, count: int, rounds: int) -> list[Result]:
        topic = f"r{size}"
        fill(self._url, topic, count, size)
        table = str(self._directory / topic)
        self.source(topic, columns="*").write.option("compression", "zstd").parquet(table)

        def rates(**options: str) -> tuple[float, float]:
            names = self.source(topic, **options).columns
            best = turns(
                {
                    "parquet": lambda: drain(self._spark.read.parquet(table).select(*names)),
                    "source": lambda: drain(self.source(topic, **options)),
                },
                rounds,
            )
            return count / best["source"], count / best["parquet"]

        source, parquet = rates()
        ratio = source / parquet
        found = [
            Result(f"source {size} B", source, "rows/s", parquet, ratio, "≥ 0.8", ratio >= 0.8),
            Result(f"source {size} B, bytes", source * size / 1e6, "MB/s"),
        ]
        source, parquet = rates(columns="*")
        return [*found, Result(f"source {size} B, all columns", source, "rows/s", parquet, source / parquet)]

    def archive(self, size: int, count: int, rounds: int) -> list[Result]:
        topic, table = f"r{size}", str(self._directory / f"r{size}")
        server = Server(self._url, ARCHIVE_APP)

        def into_lake() -> None:
            lake = self._directory / "lake"
            shutil.rmtree(lake, ignore_errors=True)
            progress = Archive(self._spark, ArchiveSettings(server, str(lake), (topic,))).run()
            assert progress.messages == count

        def copy() -> None:
            frame = self._spark.read.parquet(table).selectExpr("*", "to_date(timestamp) dt")
            writer = frame.write.option("compression", "zstd").partitionBy("topic", "dt")
            writer.mode("overwrite").parquet(str(self._directory / "copy"))

        best = turns({"copy": copy, "archive": into_lake}, rounds)
        rows = {name: count / spent for name, spent in best.items()}
        ratio = rows["archive"] / rows["copy"]
        return [Result(f"archive {size} B", rows["archive"], "rows/s", rows["copy"], ratio, "≥ 0.6", ratio >= 0.6)]

    def seek(self, count: int) -> list[Result]:
        topic = "large"
        fill(self._url, topic, count, 100)
        first = count // PARTITIONS // 2
        places = {str(p): first for p in range(PARTITIONS)}
        ends = {str(p): first + 1000 // PARTITIONS for p in range(PARTITIONS)}
        options = {"startingOffsets": json.dumps({topic: places}), "endingOffsets": json.dumps({topic: ends})}
        found = []
        spent = min(seconds(lambda: found.append(self.source(topic, **options).count())) for _ in range(3))
        assert set(found) == {1000}
        return [Result(f"seek to 1 000 of {count:,}", spent, "s", aim="< 2 s", met=spent < 2)]


def main() -> None:
    given = arguments(__doc__ or "")
    rounds = 2 if given.quick else 4
    sizes = {1024: 100_000, 100: 400_000} if given.quick else {1024: 400_000, 100: 2_000_000}
    directory = Path(tempfile.mkdtemp(prefix="lakemq-bench-spark-"))
    results: list[Result] = []
    broker = Broker()
    try:
        spark = session("local[2]", "bench", {"spark.default.parallelism": "2", "spark.driver.memory": "2g"})
        bench = SparkBench(spark, broker.url, directory)
        fill(broker.url, "warm", 1000, 100)
        drain(bench.source("warm"))
        for size, count in sizes.items():
            results += bench.scan(size, count, rounds)
            results += bench.archive(size, count, rounds)
        results += bench.seek(1_000_000 if given.quick else 10_000_000)
        spark.stop()
    finally:
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
    report(results, given.json)


if __name__ == "__main__":
    main()

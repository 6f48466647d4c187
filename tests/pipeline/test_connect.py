"""Source and sink through Spark Connect: nothing is configured but the broker's address."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")
pytest.importorskip("grpc", reason="needs pyspark[connect]")

from lakemq.pipeline.errors import SparkMissingError
from lakemq.pipeline.session import check_java

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.xdist_group("spark")]

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

topic, copied = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)

frame = spark.read.format("lakemq").option("subscribe", topic).load()
batch = sorted(int(row["value"]) for row in frame.selectExpr("cast(value as string) value").collect())

stream = spark.readStream.format("lakemq").option("subscribe", topic).option("startingOffsets", "earliest")
writer = stream.option("maxOffsetsPerTrigger", 40).load().writeStream.format("parquet").option("path", "out")
query = writer.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
query.awaitTermination(200)
if query.exception() is not None:
    raise query.exception()
files = sorted(int(row["value"]) for row in spark.read.parquet("out").selectExpr("string(value) value").collect())

frame.select("key", "value").write.format("lakemq").option("topic", copied).mode("append").save()
copies = spark.read.format("lakemq").option("subscribe", copied).load().count()

from lakemq import spark as lm

decoded = lm.decode_json(frame.selectExpr("concat('{\\"id\\":', string(value), '}') value"), "id int")
ids = decoded.where("_corrupt is null").selectExpr("sum(body.id)").collect()[0][0]
json.dump({"batch": batch, "files": files, "copies": copies, "ids": ids}, open("found.json", "w"))
spark.stop()
"""


def test_a_batch_and_a_stream_through_connect(topics, tmp_path):
    try:
        check_java()
    except SparkMissingError as error:
        pytest.skip(str(error))
    topic, copied = topics.make(), topics.make()
    topics.fill(topic, 100)
    environment = {**os.environ, "LAKEMQ_URL": topics.url, "SPARK_LOCAL_HOSTNAME": "localhost"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, topic, copied],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["batch"] == found["files"] == list(range(100))
    assert found["copies"] == 100
    assert found["ids"] == sum(range(100))

"""A Spark session with what LakeMQ's jobs want of it, and clear words where Spark or Java is missing."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lakemq.pipeline.errors import SparkMissingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS_DATABASE = "lake"
JAVA_LEAST = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

# Without Hadoop's native library the defaults start a program (chmod, readlink) for every checkpoint file.
_LOCAL_DISK = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
# Arrow checks every access to a column for its bounds and nulls, which Spark has done before it asks: without, reading
# six columns took about a quarter less time in one comparison.
_ARROW_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_SETTINGS = {
    # Views of all sessions have a database of their own; this is its name, so that `lake.orders` is one.
    "spark.sql.globalTempDatabase": VIEWS_DATABASE,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
}


def check_java(environment: Mapping[str, str] = os.environ) -> str:
    """The Java that Spark will run on; SparkMissingError if there is none, or one that is too old."""
    home = environment.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    if not java or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is none on the PATH"
        raise SparkMissingError(f"Spark needs Java, and {where}", _INSTALL_JAVA)
    try:
        found = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkMissingError(f"Spark needs Java, and {java} does not run: {error}", _INSTALL_JAVA) from None
    version = _VERSION.search(found.stderr + found.stdout)
    if version is None:
        raise SparkMissingError(f"Spark needs Java, and {java} does not say which it is", _INSTALL_JAVA)
    number = int(version[2] or 0) if version[1] == "1" else int(version[1])
    if number < JAVA_LEAST:
        raise SparkMissingError(f"Spark needs Java {JAVA_LEAST} or later, and {java} is Java {number}", _INSTALL_JAVA)
    return java


_INSTALL_JAVA = "Install one, e.g. with `apt install openjdk-17-jre-headless`, or set JAVA_HOME."


def check_installed() -> None:
    """SparkMissingError where the extra is not installed; what only looks at the lake needs no Java."""
    try:
        # Only to see whether they are there, and can be loaded.
        import deltalake  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkMissingError(
            f"the data pipeline is not installed: {error}", "Install it with `pip install 'lakemq[spark]'`."
        ) from None


def check_spark() -> None:
    """SparkMissingError where the extra is not installed or Java is not there."""
    check_installed()
    check_java()


def session(
    master: str = "", name: str = "lakemq", settings: Mapping[str, str] | None = None, *, ships: bool = False
) -> "SparkSession":
    """A session, or the one there is; `master` such as local[4] or spark://host:7077.

    `ships` sends LakeMQ's own code to workers where it is not installed.
    """
    check_spark()
    from pyspark.sql import SparkSession

    # The workers must be this Python: Spark would take whatever `python3` is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost") if not master or master.startswith("local") else None
    builder = SparkSession.builder.appName(name).master(master or "local[*,4]")
    chosen = {**_SETTINGS, **(_LOCAL_DISK if not master or master.startswith("local") else {}), **(settings or {})}
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).parent.joinpath('log4j2.properties').as_uri()}"
    for options, ours in ((_DRIVER_OPTIONS, f"{quiet} {_ARROW_OPTIONS}"), (_EXECUTOR_OPTIONS, _ARROW_OPTIONS)):
        chosen[options] = f"{ours} {chosen.get(options, '')}".strip()  # the last one wins: what was given
    if ships:
        from lakemq.pipeline.shipping import pack_code

        chosen["spark.submit.pyFiles"] = pack_code(tempfile.mkdtemp(prefix="lakemq-code-"))
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()

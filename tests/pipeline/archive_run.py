"""One run of the archive job as a process of its own, which kills itself at a chosen step: before or after a commit.

    python archive_run.py URL LAKE STEP COUNT [MASTER]

STEP is `written`, `committed`, `told`, `kept up` or `never`; it dies the COUNT-th time it comes there.
"""

import os
import signal
import sys

from lakemq.pipeline.archiving import ARCHIVE_APP, Archive, ArchiveSettings
from lakemq.pipeline.options import Server
from lakemq.pipeline.session import session


def main(url, lake, step, count, master="local[2,4]"):
    left = int(count)

    def at_step(name):
        nonlocal left
        if name == step:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    settings = ArchiveSettings(
        Server(url, ARCHIVE_APP), lake, offsets_max=int(os.environ.get("LAKEMQ_ARCHIVE_BATCH", "3000"))
    )
    spark = session(master, "archive", ships="LAKEMQ_SHIP" in os.environ)
    if "LAKEMQ_SHIP" in os.environ:
        places = spark.sparkContext.parallelize(range(2), 2).map(lambda _: __import__("lakemq").__file__).collect()
        sys.stdout.write(f"workers have {sorted(set(places))}\n")
    progress = Archive(spark, settings, at_step=at_step).run()
    sys.stdout.write(f"{progress.messages}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

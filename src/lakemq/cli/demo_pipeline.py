"""The part of the demo about the lake: archive, then one SQL over live, archive and delivery state."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakemq.errors import LakeMQError

TOPIC = "orders"
LIVE = 10
_STATE = """
    select d.`group`, o._source, d.state, count(*) messages
    from lake.orders o join lake.deliveries d using (messageId)
    group by all order by all
"""

Say = Callable[[str], None]
Expect = Callable[[str, object, object], None]


class PipelineDemo:
    """Archives the orders and asks where each of them is."""

    def __init__(self, mq: Any, url: str, lake: Path, say: Say, expect: Expect) -> None:
        self._mq = mq
        self._url = url
        self._lake = str(lake)
        self._say = say
        self._expect = expect

    def run(self) -> None:
        """All steps; without Spark or Java, only say what is missing."""
        try:
            from lakemq.pipeline.session import check_spark

            check_spark()
        except (ImportError, LakeMQError) as error:
            self._say(f"[yellow]lake[/yellow]: left out. {error}")
            return
        self._say("[green]lake[/green]: starting Spark, which takes some seconds")
        from lakemq import spark as lm

        spark = lm.session("local[2]", "lakemq demo")
        try:
            self._archive(lm, spark)
            self._ask(lm, spark)
        finally:
            spark.stop()

    def _archive(self, lm: Any, spark: Any) -> None:
        began = time.perf_counter()
        progress = lm.archive(spark, self._lake, servers=self._url)
        spent = time.perf_counter() - began
        self._say(
            f"[green]archive[/green]: {progress.messages} orders are in the lake after {spent:.1f} s, as Parquet, with "
            "what happened to them"
        )
        archived = self._count()
        self._expect("orders archived", archived, progress.messages)

    def _count(self) -> int:
        return sum(one.visible_index for one in self._mq.ranges(TOPIC).values())

    def _ask(self, lm: Any, spark: Any) -> None:
        archived = self._count()
        for number in range(LIVE):
            self._mq.send(TOPIC, {"order": archived + number}, key="c-7")
        lm.register_views(spark, self._lake, servers=self._url)
        rows = {tuple(row)[:3]: row["messages"] for row in spark.sql(_STATE).collect()}
        self._say(
            "[green]one SQL[/green] over archive, broker and delivery state says where each order is for each group"
        )
        wanted = {
            ("shop.billing", "archive", "acked"): archived,
            ("shop.billing", "live", "pending"): LIVE,
            ("shop.mailer", "archive", "acked"): archived - 1,
            ("shop.mailer", "archive", "pending"): 1,
            ("shop.mailer", "live", "pending"): LIVE,
        }
        for place, count in wanted.items():
            self._expect("orders " + ", ".join(place), count, rows.get(place, 0))

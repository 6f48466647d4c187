"""What `lakemq archive` does: Spark for the job itself, the lake's own tools for the rest."""

import signal
import threading
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lakemq.cli.failure import USAGE, CommandError
from lakemq.cli.options import Chosen, settings
from lakemq.cli.printing import print_one, print_rows, remark
from lakemq.pipeline.session import check_installed, check_spark

if TYPE_CHECKING:
    from lakemq.pipeline.archiving import ArchiveProgress
    from lakemq.pipeline.lake import Lake
    from lakemq.pipeline.options import Server

_SHOWN_PROBLEMS = 20


def server_of(chosen: Chosen, app: str = "") -> "Server":
    """Where the broker is, for the pipeline."""
    check_installed()
    from lakemq.pipeline.options import Server

    return Server(chosen.server_url(), app or chosen.app_name, chosen.token or "")


def open_lake(lake: str) -> "Lake":
    """A lake that is there."""
    check_installed()
    from lakemq.pipeline.lake import Lake

    return Lake.open(lake)


def run_archive(
    chosen: Chosen,
    topics: tuple[str, ...],
    lake: str,
    master: str,
    every: str,
    batch: int,
    ships: bool = False,
    upkeep: tuple[int, int] | None = None,
) -> None:
    check_spark()
    server = _archive_server(chosen)
    from lakemq.pipeline.archiving import Archive, ArchiveSettings
    from lakemq.pipeline.lake.place import Place
    from lakemq.pipeline.lake.upkeep import UpkeepPolicy
    from lakemq.pipeline.session import session

    Place.of(lake)  # one that cannot be is told before Spark is started
    policy = UpkeepPolicy() if upkeep is None else UpkeepPolicy(*upkeep)
    remark("starting Spark …")
    spark = session(master, "lakemq archive", ships=ships)
    archive = Archive(
        spark,
        ArchiveSettings(server, lake, topics, offsets_max=batch, every=every, upkeep=policy),
        told=_tell,
        stops=_stop_on_signals(),
    )
    progress = archive.run()
    spark.stop()
    found = asdict(progress)
    print_one({name: found[name] for name in ("messages", "missed", "batches", "bytes", "compacted")}, chosen.output)
    if progress.missed:
        remark(f"{progress.missed} messages had left the broker before: rows of table gaps say which")


def _archive_server(chosen: Chosen) -> "Server":
    """The broker, and its archive's app: as the settings of this directory say, or as the broker itself does."""
    said = str(settings().values["archive.app"])
    server = server_of(chosen, said)
    from lakemq.pipeline.archive_plan import as_archive
    from lakemq.pipeline.archiving import ARCHIVE_APP

    return as_archive(server, ARCHIVE_APP)


def _stop_on_signals() -> threading.Event:
    """Set by Ctrl-C or SIGTERM: the batch under way is finished."""
    stops = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stops.set())
    return stops


def _tell(progress: "ArchiveProgress") -> None:
    remark(f"batch {progress.batches}: {progress.messages} messages, {progress.bytes / 1e6:.1f} MB in all")


def show_status(chosen: Chosen, lake: str) -> None:
    found = open_lake(lake)
    from lakemq.pipeline.archive_plan import archived_status

    rows = archived_status(found, _archive_server(chosen))
    columns = ("topic", "partition", "archived", "end", "behind", "missing")
    print_rows(rows, columns, chosen.output, empty="nothing is archived yet: lakemq topic set TOPIC --archived")
    if not chosen.is_json:
        for name in ("messages", "meta", "events"):
            view = found.table(name).at()
            files = view.files()
            size = sum(file.size for file in files)
            remark(f"{name}: version {view.version}, {len(files)} files, {size / 1e6:.1f} MB")


def show_verification(chosen: Chosen, lake: str, offline: bool) -> None:
    found = open_lake(lake)
    from lakemq.pipeline.archive_plan import kept_positions, told_positions
    from lakemq.pipeline.lake import verify

    server = _archive_server(chosen)
    expected, kept = ({}, {}) if offline else (told_positions(server), kept_positions(server))
    report = verify(found, expected, kept=kept, progress=_tell_files)
    facts: dict[str, Any] = {
        "messages": report.rows.get("messages", 0),
        "events": report.rows.get("events", 0),
        "partitions": report.partitions,
        "files": report.files,
        "bytes": report.bytes,
        "in gaps": report.gap_offsets,
        "erased": report.erased_offsets,
        "problems": report.problem_count,
    }
    if chosen.is_json:
        facts["found"] = [str(problem) for problem in report.problems]
    print_one(facts, chosen.output)
    for problem in report.problems[:_SHOWN_PROBLEMS]:
        remark(str(problem))
    if report.is_only_behind:
        raise CommandError(
            "the lake is behind; what is in it is as it should be", fix=f"lakemq archive run --lake {lake}"
        )
    if report.problem_count:
        raise CommandError(
            f"{report.problem_count} things in the lake are not as they should be",
            fix="restore the files named above from a backup, or archive into a new lake",
        )


def _tell_files(done: int, total: int) -> None:
    if done == total or done % 100 == 0:
        remark(f"{done} of {total} files")


def run_compaction(chosen: Chosen, lake: str, topic: str | None, target_bytes: int) -> None:
    found = open_lake(lake)
    from lakemq.pipeline.lake import compact

    rows = []
    for done in compact(found, topic=topic, target_bytes=target_bytes):
        rows.append({**asdict(done), "day": str(done.day)})
        remark(f"{done.table} {done.topic} {done.day}: {done.files} files became one")
    print_rows(rows, ("table", "topic", "day", "files", "rows"), chosen.output, empty="all files are large enough")


def run_vacuum(chosen: Chosen, lake: str, hours: int, execute: bool, force: bool) -> None:
    found = open_lake(lake)
    from lakemq.pipeline.lake import vacuum

    done = vacuum(found, retention_hours=hours, dry_run=not execute, force=force)
    rows = [{"table": one.table, "files": len(one.paths)} for one in done]
    print_rows(rows, ("table", "files"), chosen.output)
    if not execute and any(one.paths for one in done):
        remark("nothing was done: add --execute")


def run_retirement(chosen: Chosen, lake: str, days: int, table: str, topic: str | None, execute: bool) -> None:
    found = open_lake(lake)
    from lakemq.pipeline.lake import retire

    known = ("messages", "meta", "events")
    if table not in (*known, "all"):
        raise CommandError(f"there is no table {table!r}", USAGE, fix=f"one of {', '.join(known)}, or all")
    ages = {name: timedelta(days=days) for name in (known if table == "all" else (table,))}
    rows = [{**asdict(one), "before": str(one.before)} for one in retire(found, ages, topic=topic, dry_run=not execute)]
    print_rows(rows, ("table", "before", "files", "rows"), chosen.output)
    if not execute and any(row["files"] for row in rows):
        remark("nothing was done: add --execute; vacuum frees the space afterwards")


def run_erasure(chosen: Chosen, lake: str, keys: list[str], topic: str | None, execute: bool) -> None:
    found = open_lake(lake)
    from lakemq.pipeline.lake import erase

    report = erase(found, keys, topic, dry_run=not execute)
    facts = {
        "messages": report.rows,
        "files": sum(one.files for one in report.tables),
        "versions": {one.table: list(one.versions) for one in report.tables},
        "execute": execute,
    }
    print_one(facts, chosen.output, ("messages", "files", "execute"))
    remark(report.next_step if execute else "nothing was done: add --execute")

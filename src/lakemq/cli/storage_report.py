"""What `lakemq storage` prints: a survey of a data directory as tables, findings, JSON or records."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lakemq import envelope
from lakemq.cli.failure import USAGE, CommandError
from lakemq.cli.printing import print_rows
from lakemq.errors import LakeMQError
from lakemq.message import BatchMessage, Message
from lakemq.storage import files
from lakemq.storage.backup import BackupError, back_up
from lakemq.storage.directory import ForeignDirectoryError
from lakemq.storage.fold import part_of
from lakemq.storage.journal_record import MESSAGE_RECORDS, RecordType, note_bytes
from lakemq.storage.survey import Survey, records, survey
from lakemq.storage.walk import Found
from lakemq.world.disk import RealDisk

_BODY_CHARACTERS = 60


def show_survey(directory: Path, *, as_json: bool, with_summary: bool) -> None:
    """What is there, if asked for, and each place that is damaged."""
    found = _look(directory)
    if as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
    else:
        if with_summary:
            _print_summary(Console(), found)
        _print_findings(Console(), found)
    raise typer.Exit(0 if found.is_sound else 1)


def make_backup(directory: Path, target: Path, output: str) -> None:
    """Copy a data directory; those of all workers if it has some."""
    workers = sorted(one.name for one in directory.glob("worker-*") if (one / files.FORMAT).exists())
    rows = []
    for name in workers or [""]:
        place = target / name
        try:
            place.mkdir(parents=True, exist_ok=True)
            with _progress() as bar:
                copied = back_up(_open(directory / name), RealDisk(place), bar)
        except (BackupError, ForeignDirectoryError, OSError) as error:
            text = f"{directory / name} could not be copied to {place}: {error}"
            raise CommandError(text, fix="check both directories and the room at the target; then begin anew") from None
        rows.append({"source": str(directory / name), "target": str(place), **copied._asdict()})
    print_rows(rows, ("source", "target", "segments", "copied_bytes", "end_position"), output)


def show_dump(
    directory: Path,
    *,
    start: int | None,
    limit: int,
    topic: int | None,
    partition: int | None,
    bodies: bool,
    output: str = "table",
) -> None:
    """Records one by one, oldest first."""
    chosen = (
        found
        for found in records(_open(directory), start)
        if topic in (None, found.header.topic) and partition in (None, found.header.partition)
    )
    if output != "table":
        print_rows([_record_as_json(found, with_bodies=bodies) for found in islice(chosen, limit)], (), output)
        return
    shown = 0
    for found in chosen:
        header = found.header
        if shown == limit:
            typer.echo(f"… more from position {found.position}: --from {found.position}")
            return
        shown += 1
        typer.echo(_record_line(found))
        if bodies and header.type in MESSAGE_RECORDS:
            for line in _message_lines(found):
                typer.echo(line)
    if shown == 0:
        typer.echo("no records")


def _open(directory: Path) -> RealDisk:
    if not (directory / files.FORMAT).exists() and not (directory / files.JOURNAL_DIRECTORY).is_dir():
        raise CommandError(
            f"{directory} is not a data directory: it has no {files.FORMAT} file",
            USAGE,
            fix="name the directory that the broker was given as --data; of workers, that of each: DATA/worker-0",
        )
    return RealDisk(directory, is_read_only=True)


def _look(directory: Path) -> Survey:
    disk = _open(directory)
    with _progress() as bar:
        return survey(disk, bar)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)
        last = 0

        def update(done: int, total: int) -> None:
            nonlocal last
            if done - last > 8 << 20 or done == total:  # not for every record
                last = done
                progress.update(task, completed=done, total=total)

        yield update


def _print_summary(console: Console, found: Survey) -> None:
    segments = Table("segment", "ends at", "records", "first", "last", title="Journal", title_justify="left")
    for one in found.segments:
        segments.add_row(str(one.base), str(one.end), str(one.record_count), _time(one.first_ms), _time(one.last_ms))
    console.print(segments)
    partitions = Table(
        "topic", "partition", "first", "next", "messages", "bytes", title="Partitions", title_justify="left"
    )
    for (topic, partition), report in sorted(found.partitions.items()):
        values = (topic, partition, report.first_index, report.next_index, report.message_count, report.messages_bytes)
        partitions.add_row(*map(str, values))
    console.print(partitions)
    terms = ", ".join(f"{term} from {position}" for term, position in found.terms) or "none"
    console.print(f"terms: {terms}")
    if found.checkpoint is not None:
        kind = "clean" if found.checkpoint.is_clean else "not clean"
        console.print(f"checkpoint: position {found.checkpoint.position} of {found.end_position}, {kind}")
        if found.checkpoint.folded is not None:
            position, snapshot = found.checkpoint.folded
            console.print(f"snapshot in the checkpoint: {len(snapshot)} bytes, position {position}")


def _print_findings(console: Console, found: Survey) -> None:
    for finding in found.findings:
        mark = "[red]DAMAGED[/red]" if finding.is_damage else "[yellow]note[/yellow]"
        console.print(f"{mark} {finding.place}: {finding.text}", soft_wrap=True, highlight=False)
    damaged = sum(finding.is_damage for finding in found.findings)
    record_count = sum(one.record_count for one in found.segments)
    verdict = "[green]sound[/green]" if found.is_sound else f"[red]{damaged} damaged places[/red]"
    console.print(f"{verdict}: {record_count} records, {len(found.partitions)} partitions", highlight=False)


def _as_json(found: Survey) -> dict[str, object]:
    return {
        "sound": found.is_sound,
        "end_position": found.end_position,
        "segments": [{"base": one.base, "end": one.end, "records": one.record_count} for one in found.segments],
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "first_index": report.first_index,
                "next_index": report.next_index,
                "messages": report.message_count,
            }
            for (topic, partition), report in sorted(found.partitions.items())
        ],
        "terms": [{"term": term, "position": position} for term, position in found.terms],
        "checkpoint": found.checkpoint.position if found.checkpoint is not None else None,
        "findings": [{"place": one.place, "text": one.text, "is_damage": one.is_damage} for one in found.findings],
    }


def _record_as_json(found: Found, *, with_bodies: bool) -> dict[str, object]:
    header = found.header
    row: dict[str, object] = {
        "position": found.position,
        "type": _kind(found),
        "length": header.length,
        "term": header.term,
        "store_time_ms": header.store_time_ms,
        "topic": header.topic,
        "partition": header.partition,
        "first_index": header.first_index,
        "index_count": header.index_count,
    }
    if with_bodies and header.type in MESSAGE_RECORDS:
        try:
            row["messages"] = [
                {"index": one.index, "key": one.business_id or None, "body": b64encode(one.body).decode()}
                for one in _messages(found)
            ]
        except LakeMQError as error:
            row["problem"] = str(error)
    return row


def _kind(found: Found) -> str:
    number = found.header.type
    return RecordType(number).name if number in list(RecordType) else f"type {number}"


def _messages(found: Found) -> Iterator[Message]:
    for value in envelope.unpack_all(found.payload[note_bytes(found.header.type, found.payload) :]):
        yield from value.messages() if isinstance(value, BatchMessage) else [value]


def _record_line(found: Found) -> str:
    header = found.header
    line = f"{found.position:>14}  {_kind(found):<12} {header.length:>8} bytes  term {header.term}"
    line += f"  {_time(header.store_time_ms)}"
    if header.type in MESSAGE_RECORDS:
        last = header.first_index + header.index_count - 1
        line += f"  topic {header.topic} partition {header.partition}  index {header.first_index} to {last}"
    elif header.type == RecordType.SNAPSHOT:
        number, count = part_of(found.payload)
        line += f"  part {number + 1} of {count}"
    return line


def _message_lines(found: Found) -> Iterator[str]:
    try:
        yield from map(_message_line, _messages(found))
    except LakeMQError as error:
        yield f"{'':>16}cannot be opened: {error}"


def _message_line(message: Message) -> str:
    text = message.body.decode("utf-8", "replace")
    shown = "".join(character if character.isprintable() else "·" for character in text[:_BODY_CHARACTERS])
    more = "…" if len(text) > _BODY_CHARACTERS else ""
    return f"{'':>16}{message.index}  {message.business_id or '-'}  {shown}{more}"


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(ms)

"""Long work that the broker does: begun by a command, watched until it ends, its failures told."""

import time
from typing import TYPE_CHECKING, Any

import typer

from lakemq.cli.failure import FAILED, INTERRUPTED, PARTLY, CommandError
from lakemq.cli.printing import Progress, print_one, remark

if TYPE_CHECKING:
    from lakemq.cli.admin_api import AdminApi

BY = "cli"
JOB_FIELDS = ("id", "kind", "about", "state", "total", "done", "skipped", "failed", "bytes", "trouble")
_LOOK_SECONDS = 0.2
_NOUNS = {"resend_range": "messages copied", "retry_now": "retries due", "give_up_retries": "retries given up"}


def follow(api: "AdminApi", job: dict[str, Any], output: str, *, waits: bool) -> None:
    """Print a job at once; or when it has ended, and then the exit code says whether all of it was done."""
    if waits:
        job = _wait(api, job)
    print_one(job, output, None if output != "table" else JOB_FIELDS)
    for failure in job["failures"]:
        remark(f"not done: {failure['what']}: {failure['why']}")
    if waits and job["state"] == "failed":
        raise CommandError(f"job {job['id']} failed: {job['trouble']}", FAILED, fix=f"lakemq job show {job['id']}")
    if waits and job["failed"]:
        raise typer.Exit(PARTLY)


def _wait(api: "AdminApi", job: dict[str, Any]) -> dict[str, Any]:
    remark(f"job {job['id']}: {job['total']} in all;    lakemq job cancel {job['id']}    ends it")
    progress = Progress(_NOUNS.get(job["kind"], "dead letters done"))
    trouble = ""
    try:
        while job["state"] == "running":
            time.sleep(_LOOK_SECONDS)  # between two looks at a job that the broker works on
            job = api.get("jobs", str(job["id"]))
            progress.tell(job["done"])
            if job["trouble"] != trouble and job["state"] == "running":
                trouble = job["trouble"]
                remark(f"it waits: {trouble}" if trouble else "it goes on")
    except KeyboardInterrupt:
        remark(f"the broker goes on with it:    lakemq job show {job['id']}    says how far it is")
        raise typer.Exit(INTERRUPTED) from None
    return job


def when_ms(text: str | None, hint: str) -> int | None:
    """A time on the command line: a span before now, such as -2h, or a date."""
    from datetime import datetime

    from lakemq.config import parse_duration_ms

    if text is None:
        return None
    try:
        if text.startswith("-"):
            return max(time.time_ns() // 1_000_000 - parse_duration_ms(text[1:]), 0)
        return max(round(datetime.fromisoformat(text).timestamp() * 1000), 0)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a span such as -2h, or a time such as 2026-11-15T14:00", param_hint=hint
        ) from None


def given(**said: Any) -> dict[str, Any]:
    """Without what was not said."""
    return {name: value for name, value in said.items() if value is not None}

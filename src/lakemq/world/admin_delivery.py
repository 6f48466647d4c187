"""The routes for messages that failed, wait, or are to be sent again: dead letters, retries, delays, copies, jobs.

What changes many messages only says what it would do, until `execute` is true; then it is a job, which goes on by
itself and can be asked about and cancelled.
"""

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Protocol
from urllib.parse import unquote

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator

from lakemq.world import admin_delivery_models as models

LINES = "application/x-ndjson"
PathName = Annotated[str, Path(min_length=1, max_length=400), AfterValidator(unquote)]
PathId = Annotated[int, Path(ge=0, le=1 << 62)]
QueryName = Annotated[str, Query(min_length=1, max_length=127)]
QueryBy = Annotated[str, Query(min_length=1, max_length=100)]
Limit = Annotated[int, Query(ge=1, le=1000)]


class Asking(Protocol):
    """Asks the broker for an action."""

    async def __call__(self, action: str, **arguments: Any) -> Any: ...


def delivery_routes(router: APIRouter, ask: Asking) -> None:
    """All of them."""
    _dead_letter_routes(router, ask)
    _many_routes(router, ask)
    _retry_routes(router, ask)
    _delay_routes(router, ask)
    _job_routes(router, ask)


def _dead_letter_routes(router: APIRouter, ask: Asking) -> None:
    @router.get("/dead-letters", response_model=models.DeadLetterPage, response_model_exclude_unset=True)
    async def list_dead(wish: Annotated[models.DeadLetterListing, Query()]) -> Any:
        return await ask("list_dead", **wish.model_dump(exclude_none=True))

    a_line: dict[int | str, dict[str, Any]] = {
        200: {"content": {LINES: {"schema": models.DeadLetterDetails.model_json_schema()}}}
    }

    @router.get("/dead-letters/export", response_class=StreamingResponse, responses=a_line)
    async def export_dead(wish: Annotated[models.DeadLetterQuery, Query()]) -> StreamingResponse:
        """All that match, oldest first, one JSON object a line."""
        said = {**wish.model_dump(exclude_none=True), "order": "oldest", "with_bodies": True}
        page = await ask("list_dead", **said)  # what is wrong is told before the first line
        return StreamingResponse(_lines(ask, said, page), media_type=LINES)

    @router.get("/dead-letters/audit", response_model=list[models.AuditRow])
    async def audit(limit: Limit = 100) -> Any:
        """What operators did with dead letters, newest first."""
        return await ask("list_dead_audit", limit=limit)

    @router.get("/dead-letters/{id}", response_model=models.DeadLetterDetails)
    async def show_dead(id: PathId) -> Any:
        return await ask("show_dead", id=id)

    @router.put("/dead-letters/{id}", response_model=models.DeadLetterDetails)
    async def edit_dead(id: PathId, change: models.DeadLetterChange) -> Any:
        more = {} if change.attributes is None else {"attributes": change.attributes}  # nulls in it mean something
        return await ask("edit_dead", id=id, by=change.by, **change.given("by", "attributes"), **more)

    @router.delete("/dead-letters/{id}", response_model=models.Done)
    async def delete_dead(id: PathId, by: QueryBy = "http") -> Any:
        return await ask("delete_dead", id=id, by=by)

    @router.post("/dead-letters/{id}/resend", response_model=models.Done)
    async def resend_dead(id: PathId, wish: models.Resend) -> Any:
        return await ask("resend_dead", id=id, by=wish.by, to=wish.to)


async def _lines(ask: Asking, said: dict[str, Any], page: dict[str, Any]) -> AsyncIterator[bytes]:
    while True:
        for row in page["rows"]:
            yield json.dumps(row).encode() + b"\n"
        if page["next"] is None:
            return
        page = await ask("list_dead", after=page["next"], **said)


def _many_routes(router: APIRouter, ask: Asking) -> None:
    @router.post("/dead-letters/resend", response_model=models.ManyDone)
    async def resend_many(wish: models.ResendMany) -> Any:
        return await ask("resend_dead_many", by=wish.by, **wish.given("by"))

    @router.post("/dead-letters/delete", response_model=models.ManyDone)
    async def delete_many(wish: models.DeleteMany) -> Any:
        return await ask("delete_dead_many", by=wish.by, **wish.given("by"))

    @router.post("/topics/{name}/resend", response_model=models.RangeDone)
    async def resend_range(name: PathName, wish: models.RangeWish) -> Any:
        """Append copies of some messages to their topic, or to another."""
        return await ask("resend_range", topic=name, by=wish.by, **wish.given("by"))


def _retry_routes(router: APIRouter, ask: Asking) -> None:
    @router.get("/retries", response_model=models.RetryPage)
    async def list_retries(
        topic: QueryName, app: QueryName, after: Annotated[int, Query(ge=0)] = 0, limit: Limit = 100
    ) -> Any:
        return await ask("list_retries", topic=topic, app=app, after=after, limit=limit)

    @router.post("/retries/now", response_model=models.RetriesDone)
    async def retry_now(wish: models.RetryWish) -> Any:
        return await ask("retry_now", by=wish.by, **wish.given("by"))

    @router.post("/retries/drop", response_model=models.RetriesDone)
    async def give_up(wish: models.RetryWish) -> Any:
        """Try them no more: they become dead letters."""
        return await ask("give_up_retries", by=wish.by, **wish.given("by"))


def _delay_routes(router: APIRouter, ask: Asking) -> None:
    @router.get("/delays", response_model=models.DelayPage)
    async def list_delays(
        topic: QueryName | None = None, after: Annotated[int, Query(ge=-1)] = -1, limit: Limit = 100
    ) -> Any:
        return await ask("list_delays", topic=topic, after=after, limit=limit)

    @router.delete("/delays/{id}", response_model=models.Done)
    async def cancel_delay(id: PathId, by: QueryBy = "http") -> Any:
        return await ask("cancel_delay", id=id, by=by)


def _job_routes(router: APIRouter, ask: Asking) -> None:
    @router.get("/jobs", response_model=list[models.Job])
    async def list_jobs() -> Any:
        return await ask("list_jobs")

    @router.get("/jobs/{id}", response_model=models.Job)
    async def show_job(id: PathId) -> Any:
        return await ask("show_job", id=id)

    @router.delete("/jobs/{id}", response_model=models.Job)
    async def cancel_job(id: PathId, by: QueryBy = "http") -> Any:
        return await ask("cancel_job", id=id, by=by)

"""The routes of the operators' HTTP interface: each asks the broker for one action and says what became of it.

Loads FastAPI, so it is imported by the thread that serves (`admin_http.py`), after the broker does. Whatever goes wrong
is told in one form, by code, name, detail and fix; a bug is told as such, its traceback goes to the log alone.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, Protocol, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import AfterValidator
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakemq.errors import (
    AuthenticationError,
    BadParameterError,
    BrokerError,
    ConsumerNotFoundError,
    LakeMQError,
    NameTakenError,
    NoPermissionError,
    ProducerNotFoundError,
    RequestError,
    ServiceUnavailableError,
    SlowSyncError,
    TopicNotFoundError,
    UnknownError,
    UnknownNameError,
    WriteTimeoutError,
)
from lakemq.version import VERSION
from lakemq.world import admin_models as models
from lakemq.world.admin_delivery import delivery_routes
from lakemq.world.prometheus import CONTENT_TYPE, Lag, Reading, disk_free_bytes, exposition

_LOG = logging.getLogger("lakemq.admin")
BODY_BYTES_MAX = 1 << 20
BODY_SECONDS_MAX = 10.0
READY_SECONDS_MAX = 2.0
OPEN_PATHS = {"/healthz", "/readyz", "/metrics", "/openapi.json"}  # everything else wants the token
_TOKEN_BYTES = 32
_TOKEN_ID_BYTES = 4

_T = TypeVar("_T")


class Operated(Protocol):
    """A broker, as far as operators have it; every method may be called from any thread."""

    def ask(self, action: str, **arguments: Any) -> "Future[Any]":
        """Do something; broker/admin.py has the actions."""
        ...

    def read(self) -> "Future[Reading]":
        """Every counter and gauge but the lags."""
        ...

    def lag_pages(self) -> "Iterator[Future[list[Lag]]]":
        """The lags of all groups."""
        ...


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """What the interface itself needs to know."""

    token: str
    data: FilePath
    timeout_seconds: float = 10.0
    disk_free_bytes_min: int = 0


class LateError(BrokerError):
    """The broker did not answer in time; what was asked for may still be done."""

    cause = "The broker did not answer in time; what was asked for may still be done."
    fix = "Look whether it was done before you ask again; check the broker's load and disk."


class UnknownRouteError(BadParameterError):
    """The interface has no such path, or it does not take that method."""

    status = None
    cause = "The interface has no such path, or it does not take that method."


# --- failures ------------------------------------------------------------------------------------------------------

_STATUS: dict[type[LakeMQError], int] = {  # the first that fits
    UnknownNameError: 404,
    NameTakenError: 409,
    TopicNotFoundError: 404,
    ConsumerNotFoundError: 404,
    ProducerNotFoundError: 404,
    AuthenticationError: 401,
    NoPermissionError: 403,
    RequestError: 400,
    LateError: 504,
    WriteTimeoutError: 504,
    SlowSyncError: 504,
    UnknownError: 500,
    LakeMQError: 503,
}


# What an operator does about it, where that is not what a client does.
_FIXES: dict[type[LakeMQError], str] = {
    TopicNotFoundError: "Check the name for slips (GET /v1/topics), or create the topic (POST /v1/topics).",
    ConsumerNotFoundError: "Subscribe the app as a consumer first (PUT /v1/subscriptions).",
    AuthenticationError: "Send `Authorization: Bearer TOKEN` with the token of the broker's operators.",
    UnknownRouteError: "Look up paths and methods in /openapi.json.",
}


def status_of(error: LakeMQError) -> int:
    """The HTTP status that says it."""
    return next(status for kind, status in _STATUS.items() if isinstance(error, kind))


def code_of(error: LakeMQError) -> int | None:
    """Its code, or the nearest one above it in the tree."""
    statuses: list[int | None] = [getattr(kind, "status", None) for kind in type(error).__mro__]
    return next((status for status in statuses if status is not None), None)


def failure(error: LakeMQError, status: int | None = None, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error as an answer."""
    fix = _FIXES.get(type(error), error.fix)
    told = {"code": code_of(error), "name": type(error).__name__, "detail": str(error), "fix": fix}
    return JSONResponse({"error": told}, status or status_of(error), headers)


def _say_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, LakeMQError)
    return failure(error)


def _say_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return failure(BadParameterError("; ".join(map(_sentence, error.errors()[:5]))))


def _sentence(found: Any) -> str:
    place = ".".join(str(part) for part in found["loc"] if part not in ("body", "query", "path")) or "the body"
    if found["type"] == "extra_forbidden":
        return f"{place} is not known here"
    if found["type"] == "missing":
        return f"{place} is missing"
    if found["type"] == "json_invalid":
        return f"the body is not JSON: {found.get('ctx', {}).get('error', 'it cannot be read')}"
    return f"{place}: {found['msg'][:1].lower()}{found['msg'][1:]}"


def _say_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {
        404: f"there is nothing at {request.scope['path']}",
        405: f"{request.scope['path']} does not take {request.method}",
    }.get(error.status_code, str(error.detail))
    kind = UnknownRouteError if error.status_code in (404, 405) else BadParameterError
    return failure(kind(text), error.status_code, dict(error.headers or {}))


def _say_bug(_: Request, error: Exception) -> Response:
    return failure(UnknownError(f"{type(error).__name__} in the broker: its log has more"))


# --- before the routes ---------------------------------------------------------------------------------------------


class Gate:
    """Lets through who has the token, with a body that is small and JSON."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # there are no websockets here
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        # As it was sent: a slash inside a name arrives as %2F and must not become one between names.
        path = scope["raw_path"].decode("ascii", "replace") if scope.get("raw_path") else scope["path"]
        refusal = self._refusal(path, scope["method"], headers)
        if refusal is not None:
            await refusal({**scope, "path": path}, receive, send)
            return
        body = await _body(receive)
        if isinstance(body, Response):
            await body({**scope, "path": path}, receive, send)
            return
        await self._app({**scope, "path": path}, _again(body, receive), send)

    def _refusal(self, path: str, method: str, headers: dict[str, str]) -> Response | None:
        if path not in OPEN_PATHS:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            is_right = hmac.compare_digest(given.strip().encode(), self._token)
            if scheme.lower() != "bearer" or not is_right:
                what = "is not the operators' token" if given else "is missing"
                error = AuthenticationError(f"the bearer token {what}: it is in DATA/admin-token, if no other is set")
                return failure(error, 401, {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:12]) > BODY_BYTES_MAX or len(length) > 12:
            return _too_large()
        has_body = length != "0" or "transfer-encoding" in headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method in ("POST", "PUT", "PATCH") and has_body and kind != "application/json":
            return failure(BadParameterError(f"the body is {kind or 'of no type'}; send application/json"), 415)
        return None


def _too_large() -> Response:
    return failure(BadParameterError(f"the body is larger than {BODY_BYTES_MAX} bytes"), 413, {"Connection": "close"})


async def _body(receive: Receive) -> bytes | Response:
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return b""  # it is gone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > BODY_BYTES_MAX:
                    return _too_large()
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        return failure(BadParameterError("the body did not arrive in time"), 408, {"Connection": "close"})


def _again(body: bytes, receive: Receive) -> Receive:
    is_told = False

    async def told() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return told


# --- asking the broker ---------------------------------------------------------------------------------------------


async def _answer(future: "Future[_T]", seconds: float) -> _T:
    """What the broker says, or LateError. The future is left alone: what was asked for cannot be taken back."""
    waiting = asyncio.wrap_future(future)
    done, _ = await asyncio.wait({waiting}, timeout=seconds)
    if not done:
        waiting.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody will ask for it
        raise LateError(f"no answer within {seconds:g} s; what was asked for may still be done")
    return waiting.result()


class _Asking:
    def __init__(self, operated: Operated, settings: AdminSettings) -> None:
        self.operated = operated
        self.settings = settings
        self.is_scraping = asyncio.Lock()

    async def __call__(self, action: str, **arguments: Any) -> Any:
        try:
            future = self.operated.ask(action, **arguments)
        except RuntimeError:  # its loop has ended
            raise ServiceUnavailableError("the broker has stopped") from None
        return await _answer(future, self.settings.timeout_seconds)

    async def metrics(self) -> bytes:
        seconds = self.settings.timeout_seconds
        try:
            async with self.is_scraping:  # one at a time, however many ask
                reading = await _answer(self.operated.read(), seconds)
                lags: list[Lag] = []
                for page in self.operated.lag_pages():
                    found = await _answer(page, seconds)
                    lags += found
        except RuntimeError:
            raise ServiceUnavailableError("the broker has stopped") from None
        return exposition(reading, lags, self.settings.data)

    async def checks(self) -> dict[str, dict[str, Any]]:
        """Each thing that must be right for messages to be taken and handed out."""
        try:
            said = await _answer(
                self.operated.ask("show_broker"), min(READY_SECONDS_MAX, self.settings.timeout_seconds)
            )
        except (LakeMQError, RuntimeError) as error:
            return {"serving": {"is_ok": False, "detail": str(error)}}
        free_bytes, floor_bytes = disk_free_bytes(self.settings.data), self.settings.disk_free_bytes_min
        return {
            "serving": {"is_ok": True, "detail": f"{said['connections']} connections"},
            "draining": {"is_ok": not said["draining"], "detail": "stopping" if said["draining"] else "no"},
            "journal": {
                "is_ok": said["journal_failure"] is None,
                "detail": said["journal_failure"] or f"{said['unsynced_bytes']} bytes wait for a sync",
            },
            "disk": {
                "is_ok": free_bytes >= floor_bytes and said["disk_full"] is None,
                "detail": said["disk_full"] or f"{free_bytes} bytes are free, at least {floor_bytes} are wanted",
            },
            "readable": {"is_ok": said["readable"], "detail": "yes" if said["readable"] else "set to hand out nothing"},
            "writable": {"is_ok": said["writable"], "detail": "yes" if said["writable"] else "set to take nothing"},
        }


# --- routes --------------------------------------------------------------------------------------------------------

PathName = Annotated[str, Path(min_length=1, max_length=400), AfterValidator(unquote)]
QueryName = Annotated[str, Query(min_length=1, max_length=127)]
_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": models.FailureAnswer, "description": text}
    for status, text in {
        400: "a value is wrong",
        401: "the token is missing or wrong",
        403: "not allowed",
        404: "there is nothing of that name",
        409: "there is one of that name already",
        503: "the broker cannot do it now",
        504: "the broker did not answer in time",
    }.items()
}


def make_app(operated: Operated, settings: AdminSettings) -> ASGIApp:
    """The whole interface, as an ASGI application."""
    app = FastAPI(title="LakeMQ", version=VERSION, docs_url=None, redoc_url=None)  # those pages load from elsewhere
    for kind, say in (
        (LakeMQError, _say_error),
        (RequestValidationError, _say_invalid),
        (HTTPException, _say_http),
        (Exception, _say_bug),
    ):
        app.add_exception_handler(kind, say)
    ask = _Asking(operated, settings)
    app.include_router(_open_routes(ask))
    scheme = HTTPBearer(auto_error=False, description="the operators' token; `Gate` checks it")
    router = APIRouter(prefix="/v1", dependencies=[Security(scheme)], responses=_FAILURES)
    _topic_routes(router, ask)
    _app_routes(router, ask)
    _subscription_routes(router, ask)
    _broker_routes(router, ask)
    delivery_routes(router, ask)
    app.include_router(router)
    return Gate(app, settings.token)


def _open_routes(ask: _Asking) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz", response_model=models.Health)
    async def healthz() -> Any:
        """The process runs."""
        return {"status": "ok", "checks": {"process": {"is_ok": True, "detail": f"lakemq {VERSION}"}}}

    @router.get("/readyz", response_model=models.Health, responses={503: {"model": models.Health}})
    async def readyz() -> Response:
        """Messages are taken and handed out; if not, what is in the way."""
        checks = await ask.checks()
        is_ok = all(check["is_ok"] for check in checks.values())
        status = "ok" if is_ok else "failing"
        return JSONResponse({"status": status, "checks": checks}, 200 if is_ok else 503)

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counters and gauges, for Prometheus."""
        return Response(await ask.metrics(), media_type=CONTENT_TYPE)

    return router


def _topic_routes(router: APIRouter, ask: _Asking) -> None:
    @router.get("/topics", response_model=list[models.Topic])
    async def list_topics() -> Any:
        return await ask("list_topics")

    @router.post("/topics", response_model=models.Topic, status_code=201)
    async def create_topic(topic: models.NewTopic) -> Any:
        return await ask("create_topic", **topic.given())

    @router.get("/topics/{name}", response_model=models.TopicDetails)
    async def show_topic(name: PathName) -> Any:
        found = await ask("show_topic", name=name)
        return {**found, "subscriptions": [_subscription(one) for one in found["subscriptions"]]}

    @router.put("/topics/{name}", response_model=models.Topic)
    async def set_topic(name: PathName, change: models.TopicSettings) -> Any:
        return await ask("set_topic", name=name, **change.given())

    @router.delete("/topics/{name}", response_model=models.Dropped)
    async def drop_topic(name: PathName) -> Any:
        return await ask("drop_topic", name=name)


def _app_routes(router: APIRouter, ask: _Asking) -> None:
    @router.get("/apps", response_model=list[models.App])
    async def list_apps() -> Any:
        return await ask("list_apps")

    @router.post("/apps", response_model=models.App, status_code=201)
    async def create_app(app: models.NewApp) -> Any:
        return await ask("create_app", name=app.name)

    @router.get("/apps/{name}", response_model=models.AppDetails)
    async def show_app(name: PathName) -> Any:
        found = await ask("show_app", name=name)
        return {**found, "subscriptions": [_subscription(one) for one in found["subscriptions"]]}

    @router.put("/apps/{name}", response_model=models.App)
    async def set_app(name: PathName, limits: models.AppLimits) -> Any:
        return await ask("set_app", name=name, **limits.given())

    @router.delete("/apps/{name}", response_model=models.Dropped)
    async def drop_app(name: PathName) -> Any:
        return await ask("drop_app", name=name)

    @router.post("/apps/{name}/tokens", response_model=models.MadeToken, status_code=201)
    async def add_token(name: PathName, wish: models.NewToken, response: Response) -> Any:
        token_id = wish.id or secrets.token_hex(_TOKEN_ID_BYTES)
        token = wish.token or secrets.token_urlsafe(_TOKEN_BYTES)
        await ask("add_token", name=name, token_id=token_id, token=token, expires_ms=wish.expires_ms)
        response.headers["Cache-Control"] = "no-store"
        return {"app": name, "id": token_id, "token": token, "expires_ms": wish.expires_ms}

    @router.delete("/apps/{name}/tokens/{token_id}", response_model=models.App)
    async def drop_token(name: PathName, token_id: PathName) -> Any:
        return await ask("drop_token", name=name, token_id=token_id)


def _subscription_routes(router: APIRouter, ask: _Asking) -> None:
    @router.get("/subscriptions", response_model=list[models.Subscription])
    async def list_subscriptions(topic: QueryName | None = None, app: QueryName | None = None) -> Any:
        return [_subscription(one) for one in await ask("list_subscriptions", topic=topic, app=app)]

    @router.put("/subscriptions", response_model=models.Subscription)
    async def subscribe(change: models.SubscriptionChange) -> Any:
        roles = {
            role: settings.given()
            for role, settings in (("producer", change.producer), ("consumer", change.consumer))
            if settings is not None
        }
        return _subscription(await ask("subscribe", topic=change.topic, app=change.app, start=change.start, **roles))

    @router.delete("/subscriptions", response_model=models.Dropped)
    async def unsubscribe(topic: QueryName, app: QueryName, role: Literal["producer", "consumer"] | None = None) -> Any:
        return await ask("unsubscribe", topic=topic, app=app, role=role)

    @router.get("/lag", response_model=list[models.Place])
    async def lag(topic: QueryName, app: QueryName) -> Any:
        return await ask("lag", topic=topic, app=app)

    @router.post("/seek", response_model=list[models.Move])
    async def seek(wish: models.Seek) -> Any:
        if (wish.to == "time") != (wish.time_ms is not None):
            raise BadParameterError("time_ms belongs to `to: time`, and `to: time` wants it")
        return await ask("seek", **wish.given())


def _broker_routes(router: APIRouter, ask: _Asking) -> None:
    @router.get("/broker", response_model=models.Broker)
    async def show_broker() -> Any:
        return await ask("show_broker")

    @router.put("/broker", response_model=models.Broker)
    async def set_broker(change: models.BrokerChange) -> Any:
        return await ask("set_broker", **change.given())

    @router.get("/connections", response_model=list[models.Connection])
    async def list_connections() -> Any:
        return await ask("list_connections")


def _subscription(said: dict[str, Any]) -> dict[str, Any]:
    """Weights as an object; the broker keeps them as pairs."""
    producer = said["producer"]
    return said if producer is None else {**said, "producer": {**producer, "weights": dict(producer["weights"])}}

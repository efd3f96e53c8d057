"""The page's routes. What a request may do is decided in guard.py, what is shown in facts.py."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.cluster.asking import ask
from shoal.cluster.messages import Answer, CheckpointRequest, DrainRequest, ScaleRequest
from shoal.cluster.process_limits import check_processes
from shoal.dashboard.facts import PageFacts
from shoal.dashboard.guard import AskedPage, deny
from shoal.dashboard.looks import KnownRun, Looks
from shoal.dashboard.metrics import CONTENT_TYPE, metrics
from shoal.errors import UsageError, WireError

EVERY = 0.5  # seconds between two looks
_SHOWN_EVERY = 2.0  # seconds between two drawings: the browser may share its cores with the training
_MOST_WATCHERS = 16
_LARGEST_BODY = 1024  # bytes
_STILL_THERE = 10.0  # seconds after which a watcher is sent something, if there is no news
_FILES = {"page.js": "text/javascript", "charts.js": "text/javascript", "style.css": "text/css"}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class ScaleOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Train with so many workers."""

    run: str
    workers: int


class DrainOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let this worker leave."""

    run: str
    member: str


class CheckpointOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Write one now."""

    run: str


class PageNews(msgspec.Struct, frozen=True):
    """What a watcher is sent."""

    runs: list[KnownRun]
    facts: PageFacts | None


class Page:
    """The server's side of it, for one event loop."""

    def __init__(self, looks: Looks, closing: asyncio.Event) -> None:
        """`closing`: watchers get a last look, and their streams end."""
        self._looks = looks
        self._closing = closing
        self._watchers = 0

    def routes(self) -> list[Route]:
        return [
            Route("/", self.show),
            Route("/static/{name}", self.file),
            Route("/api/events", self.events),
            Route("/api/scale", self.scale, methods=["POST"]),
            Route("/api/drain", self.drain, methods=["POST"]),
            Route("/api/checkpoint", self.checkpoint, methods=["POST"]),
            Route("/metrics", self.metrics),
        ]

    # Looking ----------------------------------------------------------------------------------------

    async def show(self, request: Request) -> Response:
        return Response(_static("index.html"), media_type="text/html")

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _FILES:
            return PlainTextResponse("there is no such file", HTTPStatus.NOT_FOUND)
        return Response(_static(name), media_type=_FILES[name])

    async def metrics(self, request: Request) -> Response:
        runs = [await self._looks.facts(run) for run in await self._looks.runs()]
        return Response(metrics(runs), headers={"content-type": CONTENT_TYPE})

    async def events(self, request: Request) -> Response:
        if self._watchers >= _MOST_WATCHERS:
            return PlainTextResponse(f"{_MOST_WATCHERS} pages are open already", HTTPStatus.SERVICE_UNAVAILABLE)
        return StreamingResponse(self._stream(request.query_params.get("run")), media_type="text/event-stream")

    async def _stream(self, name: str | None) -> AsyncIterator[bytes]:
        """News as they come, until the server closes."""
        self._watchers += 1
        try:
            before, shown, silence = b"", None, 0.0
            while not self._closing.is_set():
                states = await self._states(name)
                silence += EVERY
                if states != shown or silence >= _SHOWN_EVERY:
                    encoded = msgspec.json.encode(await self._news(name))
                    if encoded != before:
                        before, shown, silence = encoded, states, 0.0
                        yield b"data: " + encoded + b"\n\n"
                    elif silence > _STILL_THERE:
                        silence = 0.0
                        yield b": still there\n\n"
                await self._pause()
            yield b"data: " + msgspec.json.encode(await self._news(name)) + b"\n\n"
        finally:
            self._watchers -= 1

    async def _states(self, name: str | None) -> tuple[str, ...]:
        """What is shown at once when it changes."""
        run = await self._looks.run(name)
        return (run.name, *(await self._looks.glance(run)).states) if run is not None else ()

    async def _news(self, name: str | None) -> PageNews:
        run = await self._looks.run(name)
        return PageNews(await self._looks.known(), await self._looks.facts(run) if run is not None else None)

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._closing.wait(), EVERY)
        except TimeoutError:
            return

    # Acting -----------------------------------------------------------------------------------------

    async def scale(self, request: Request) -> Response:
        order = msgspec.json.decode(await _body(request), type=ScaleOrder)
        if order.workers < 1:
            raise UsageError("a run needs at least 1 worker")
        check_processes(f"{order.workers} workers", order.workers, len(os.sched_getaffinity(0)))
        return await self._tell(order.run, ScaleRequest(order.workers))

    async def drain(self, request: Request) -> Response:
        order = msgspec.json.decode(await _body(request), type=DrainOrder)
        return await self._tell(order.run, DrainRequest(order.member))

    async def checkpoint(self, request: Request) -> Response:
        order = msgspec.json.decode(await _body(request), type=CheckpointOrder)
        return await self._tell(order.run, CheckpointRequest())

    async def _tell(self, name: str, request: ScaleRequest | DrainRequest | CheckpointRequest) -> Response:
        run = await self._looks.run(name)
        if run is None or run.folder is None or not run.is_alive:
            raise UsageError("the run is over")
        try:
            answer = await asyncio.to_thread(ask, run.folder, request)
        except (WireError, OSError) as error:
            raise UsageError(f"the coordinator does not answer: {error}") from error
        if not isinstance(answer, Answer) or not answer.ok:
            raise UsageError(answer.text if isinstance(answer, Answer) else "the coordinator did not understand")
        return PlainTextResponse(answer.text)


class Gate:
    """Around everything: who is refused does not come in, and every answer has the same headers."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            return  # there is nothing else here
        denial = deny(_asked(scope), self._token)
        app = self._app if denial is None else PlainTextResponse(denial.text, denial.status)
        await app(scope, receive, send_with_headers)


def make_app(page: Page, token: str) -> Starlette:
    refused = {UsageError: _refuse, msgspec.DecodeError: _refuse}
    return Starlette(routes=page.routes(), middleware=[Middleware(Gate, token=token)], exception_handlers=refused)


def _asked(scope: Scope) -> AskedPage:
    headers = Headers(scope=scope)
    query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8)
    return AskedPage(
        scope["path"],
        headers.get("host", ""),
        headers.get("origin"),
        headers.get("sec-fetch-site"),
        headers.get("authorization", ""),
        query.get("token", [""])[-1],
    )


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_BODY:
            raise UsageError(f"an order has at most {_LARGEST_BODY} bytes")
    return body


async def _refuse(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), HTTPStatus.BAD_REQUEST)


def _static(name: str) -> bytes:
    return (files("shoal.dashboard") / "static" / name).read_bytes()

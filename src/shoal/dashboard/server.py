"""Serves the page on loopback, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import uvicorn

from shoal.dashboard.app import Page, make_app
from shoal.dashboard.looks import Looks
from shoal.dashboard.sources import WatchedRun
from shoal.errors import UsageError

TOKEN = "SHOAL_DASHBOARD_TOKEN"  # in the environment: for those who scrape, and need the same one every time
_SHORTEST_TOKEN = 16
_HOST = "127.0.0.1"
_NOTICES_WITHIN = 0.5  # seconds, a signal: its handler can't wake the event loop
_LAST_WORDS = 2  # seconds in which watchers hear the end


def token_of(environ: Mapping[str, str]) -> str:
    """A new one, unless the user has chosen one."""
    chosen = environ.get(TOKEN)
    if chosen is None:
        return secrets.token_urlsafe(24)
    if len(chosen) < _SHORTEST_TOKEN or not all(letter.isalnum() or letter in "-_." for letter in chosen):
        raise UsageError(f"{TOKEN}: expected at least {_SHORTEST_TOKEN} letters, digits, and any of - _ .")
    return chosen


def serve(
    find: Callable[[], Sequence[WatchedRun]],
    port: int,
    token: str,
    announce: Callable[[str], None],
    until: Callable[[], object] | None = None,
) -> None:
    """Until a signal comes, or `until`, which another thread calls, returns. `port`: 0 for a free one.

    `announce` is told the address, once it is served. UsageError if it can't be.
    """
    asyncio.run(_serve(find, port, token, announce, until))


async def _serve(
    find: Callable[[], Sequence[WatchedRun]],
    port: int,
    token: str,
    announce: Callable[[str], None],
    until: Callable[[], object] | None,
) -> None:
    closing = asyncio.Event()
    app = make_app(Page(Looks(find), closing), token)
    config = uvicorn.Config(
        app,
        _HOST,
        port,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=64,
        h11_max_incomplete_event_size=16 * 1024,
        timeout_graceful_shutdown=_LAST_WORDS,
    )
    server = _Server(config, closing, lambda bound: announce(f"http://{_HOST}:{bound}/#{token}"))
    if until is not None:
        loop = asyncio.get_running_loop()

        def wait() -> None:
            until()
            loop.call_soon_threadsafe(server.stop)

        threading.Thread(target=wait, name="shoal-dashboard-until", daemon=True).start()
    try:
        await server.serve()
    except SystemExit as error:
        raise UsageError(f"the page can't be served at {_HOST}:{port}: somebody else listens there") from error


class _Server(uvicorn.Server):
    """Says where it listens; lets streams end when it does."""

    def __init__(self, config: uvicorn.Config, closing: asyncio.Event, listens: Callable[[int], None]) -> None:
        super().__init__(config)
        self._closing = closing
        self._listens = listens

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup()
        if self.servers:
            self._listens(self.servers[0].sockets[0].getsockname()[1])

    async def main_loop(self) -> None:
        """Its own looks ten times a second whether somebody wants it to end, and writes the date for each answer."""
        while not self.should_exit:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _NOTICES_WITHIN)

    def stop(self) -> None:
        self._closing.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._closing.set()
        super().handle_exit(sig, frame)

"""The dashboard's HTTP routes: the page, its files, a stream of updates, metrics.

All routes are read-only GETs. Files are looked up by name in memory, so no request path reaches
the disk. A request with an unknown Host header is refused: it may come from a foreign page whose
name was rebound to this machine (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celu.dashboard.live import LiveRun
from celu.dashboard.metrics import CONTENT_TYPE, metrics_text
from celu.http_limits import AllowedHosts
from celu.page.assemble import ICON, SCRIPTS, STYLES, asset, linked_page, script_safe_json

_MIN_POLL_S = 0.5  # between two reads of the run folders
_IDLE_FACTOR = 20  # idle 20 times as long as a read took: a browser costs 1/20 of a core
_MAX_IDLE_S = 3.0  # the first read of a long run takes a while
_KEEPALIVE_S = 10.0  # without a write, a browser that has gone would not be noticed
_ASSETS = "/assets"
_DASHBOARD_FILES = ("dashboard.css", "dashboard.js")
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def application(
    runs: Sequence[LiveRun],
    hosts: AllowedHosts,
    *,
    metrics: bool = False,
    is_closing: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """The dashboard of these runs. When `is_closing`, streams send a last update and end."""
    title = "celu: " + ", ".join(run.label for run in runs)
    page = linked_page(title, asset("celu.dashboard", "dashboard.html"), _ASSETS, *_DASHBOARD_FILES)
    files = {name: asset("celu.page", name) for name in (*STYLES, *SCRIPTS, ICON)}
    files |= {name: asset("celu.dashboard", name) for name in _DASHBOARD_FILES}

    async def index(request: Request) -> Response:
        return HTMLResponse(page)

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            return PlainTextResponse("no such file", 404)
        return Response(files[name], media_type=_TYPES[name[name.rfind(".") :]])

    async def events(request: Request) -> Response:
        return StreamingResponse(_stream(runs, is_closing), media_type="text/event-stream")

    async def scrape(request: Request) -> Response:
        for run in runs:
            run.refresh()
        return Response(metrics_text(runs), headers={"Content-Type": CONTENT_TYPE})

    routes = [
        Route("/", index),
        Route(f"{_ASSETS}/{{name:path}}", file),
        Route("/events", events),
        *([Route("/metrics", scrape)] if metrics else []),
    ]
    return _SecurityMiddleware(Starlette(routes=routes), hosts)


class _SecurityMiddleware:
    """Refuses requests with an unknown Host, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if not self._hosts.allows(Headers(scope=scope).get("host", "")):
            app = PlainTextResponse("this dashboard does not answer to that Host header", 421)
        await app(scope, receive, send_with_headers)


class _Subscriber:
    """One browser's view of one run: what it has been sent so far."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._generation = -1
        self._snapshot_position = 0
        self._position = 0
        self._sent_state = ""

    def next_update(self) -> dict[str, object] | None:
        """A snapshot, or what is new since the last update; None if nothing is."""
        run = self._run
        needs_snapshot = self._generation != run.generation
        new_points = None
        if not needs_snapshot:
            try:
                new_points = run.new_points(self._snapshot_position, self._position)
            except ValueError:
                needs_snapshot = True
        state = run.state()
        text = script_safe_json(state)
        if not needs_snapshot and new_points is None and text == self._sent_state:
            return None
        self._generation, self._position, self._sent_state = run.generation, run.position, text
        if needs_snapshot:
            self._snapshot_position = run.position
            return {"label": run.label, "series": run.series(), "state": state}
        return {"new_points": new_points, "state": state}


async def _stream(runs: Sequence[LiveRun], is_closing: Callable[[], bool]) -> AsyncIterator[str]:
    """Server-sent events: updates by the run's index, the first one a snapshot."""
    subscribers = [_Subscriber(run) for run in runs]
    last_sent = time.monotonic()
    while True:
        closing = is_closing()  # before the last read, so that no event is missed
        started = time.monotonic()
        for run in runs:
            run.refresh()
        updates = {i: new for i, one in enumerate(subscribers) if (new := one.next_update())}
        if updates:
            last_sent = started
            yield f"event: update\ndata: {script_safe_json(updates)}\n\n"
        elif started - last_sent > _KEEPALIVE_S:
            last_sent = started
            yield ": keepalive\n\n"
        if closing:
            yield "event: end\ndata: {}\n\n"
            return
        idle_s = min(_MAX_IDLE_S, _IDLE_FACTOR * (time.monotonic() - started))
        await asyncio.sleep(max(_MIN_POLL_S, idle_s))

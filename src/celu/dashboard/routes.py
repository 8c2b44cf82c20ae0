"""What the dashboard answers: its page, the page's files, a stream of what happens, metrics.

Everything is a GET, nothing changes a run. Files are known by their names, so that no path of a
request ever meets a disk. A request for another host's name is refused: a page of somebody else's
in the same browser may have had that name point here.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celu.dashboard.live import LiveRun
from celu.dashboard.metrics import TYPE, metrics_text
from celu.page.assemble import ICON, SCRIPTS, STYLES, asset, embedded, linked_page

_TICK_S = 0.5  # between two looks at a run, at least
_REST = 20  # times as long as a look took: a browser costs the run beside us a twentieth of a core
_LONGEST_S = 3.0  # of such a rest: a first look at a long run takes a while
_PING_S = 10.0  # a silent stream says so: else nobody would notice that a browser is gone
_ASSETS = "/assets"
_OWN = ("dashboard.css", "dashboard.js")
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
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True)
class Names:
    """By which names the dashboard may be asked for.

    `any_address`: also by an address of numbers, which nobody can have point elsewhere. The port
    is left open, so that it can be forwarded.
    """

    names: Collection[str] = LOOPBACK
    any_address: bool = False

    def has(self, host: str) -> bool:
        """Whether that is the value of a Host header that we answer to."""
        found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+)(:\d{1,5})?", host)
        if found is None:
            return False
        name = found[1].lower()
        return name in self.names or (self.any_address and _is_address(name))


def application(
    runs: Sequence[LiveRun],
    names: Names,
    *,
    metrics: bool = False,
    is_closing: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """The dashboard of some runs. Where it `is_closing`, streams tell what is new and end."""
    title = "celu: " + ", ".join(run.label for run in runs)
    page = linked_page(title, asset("celu.dashboard", "dashboard.html"), _ASSETS, *_OWN)
    files = {name: asset("celu.page", name) for name in (*STYLES, *SCRIPTS, ICON)}
    files |= {name: asset("celu.dashboard", name) for name in _OWN}

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
        return Response(metrics_text(runs), headers={"Content-Type": TYPE})

    routes = [
        Route("/", index),
        Route(f"{_ASSETS}/{{name:path}}", file),
        Route("/events", events),
        *([Route("/metrics", scrape)] if metrics else []),
    ]
    return _Guard(Starlette(routes=routes), names)


class _Guard:
    """Lets in who asked for us by name, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if not self._names.has(Headers(scope=scope).get("host", "")):
            app = PlainTextResponse("this dashboard is not asked for by that name", 421)
        await app(scope, receive, send_with_headers)


class _Reader:
    """One browser's place in one run."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._story = -1
        self._since = 0  # where it was told all
        self._place = 0
        self._told = ""

    def news(self) -> dict[str, object] | None:
        """What this browser has not been told: all, or what came since; None for nothing."""
        run = self._run
        whole = self._story != run.story
        added = None
        if not whole:
            try:
                added = run.added(self._since, self._place)
            except ValueError:
                whole = True
        state = run.state()
        text = embedded(state)
        if not whole and added is None and text == self._told:
            return None
        self._story, self._place, self._told = run.story, run.place, text
        if whole:
            self._since = run.place
            return {"label": run.label, "lines": run.lines(), "state": state}
        return {"added": added, "state": state}


async def _stream(runs: Sequence[LiveRun], is_closing: Callable[[], bool]) -> AsyncIterator[str]:
    """Server-sent events: each run by its number, at first whole, then what is new."""
    readers = [_Reader(run) for run in runs]
    told = time.monotonic()
    while True:
        closing = is_closing()  # before the last look, so that nothing is missed
        began = time.monotonic()
        for run in runs:
            run.refresh()
        news = {i: new for i, reader in enumerate(readers) if (new := reader.news())}
        if news or began - told > _PING_S:
            told = began
            yield f"event: news\ndata: {embedded(news)}\n\n" if news else ": still here\n\n"
        if closing:
            yield "event: end\ndata: {}\n\n"
            return
        rest_s = min(_LONGEST_S, _REST * (time.monotonic() - began))
        await asyncio.sleep(max(_TICK_S, rest_s))


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True

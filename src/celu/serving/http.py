"""The HTTP routes of a serving guest: the Open Inference Protocol, health and metrics.

A plain ASGI application: requests are few kinds, and each millisecond counts. Every answer is JSON
in the form of the protocol, also that of an error.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from celu.config.serve import ServeSettings
from celu.errors import CeluError, DataError, ModelError, RequestError
from celu.http_limits import AllowedHosts
from celu.serving.batching import Job, Outcome
from celu.serving.inference_protocol import (
    PLATFORM,
    Answer,
    InferRequest,
    metadata,
    parse_request,
    render_answer,
    render_error,
)
from celu.serving.model_shelf import ServedModel
from celu.serving.predicting import num_classes
from celu.serving.serve_metrics import CONTENT_TYPE, ServeMetrics
from celu.version import __version__

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Headers = dict[bytes, bytes]
_JSON = b"application/json"
_GET_HEADERS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_MAX_HOSTS = 64  # Host headers whose check is remembered
_OPEN = {"/v2/health/live", "/v2/health/ready"}  # for probes, which have no token


@dataclass(frozen=True)
class Health:
    """The state of the server: `is_ready` to answer, and `is_complete` with all hosts."""

    current: Callable[[], ServedModel | None]
    is_ready: Callable[[], bool]
    is_complete: Callable[[], bool]


class Scoring(Protocol):
    """What scores requests."""

    def submit(self, job: Job) -> None:
        """Score a job, whose `done` gets the outcome; raises RequestError if too many wait."""
        ...


class HttpApp:
    """The ASGI application. Without a token or client certificates, only this machine is served:
    then requests of web pages are refused, by their Host and Origin.
    """

    def __init__(
        self,
        settings: ServeSettings,
        token: bytes | None,
        scoring: Scoring,
        health: Health,
        metrics: ServeMetrics,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._settings = settings
        self._token = token
        self._scoring = scoring
        self._health = health
        self._metrics = metrics
        self._say = say
        self._said = ""
        is_open = token or settings.ca or settings.is_exposed
        self._allows_host = None if is_open else lru_cache(_MAX_HOSTS)(AllowedHosts().allows)
        self._infer_path = f"/v2/models/{settings.name}/infer"
        self._max_bytes = settings.max_body_mb * 2**20
        self._in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server for each request."""
        if scope["type"] != "http":
            return
        started = time.monotonic()
        is_infer = scope["path"].endswith("/infer")
        missing = None
        content_type = _JSON
        try:
            given = dict(scope["headers"])
            self._check_client(scope["path"], given)
            if is_infer:
                body, missing = await self._infer(scope, given, receive)
                status = 200
            else:
                status, body, content_type = self._get(scope)
        except RequestError as error:
            status, body = error.status, render_error(str(error))
        except (DataError, UnicodeError) as error:
            status, body = 400, render_error(str(error))
        except ModelError as error:  # it quotes code, which is not for clients
            status, body = 500, render_error("the model failed; the server's output says why")
            if str(error) != self._said:  # once, not for every request
                self._said = str(error)
                self._say(f"a request failed: {error}")
        except CeluError as error:
            status, body = 500, render_error(str(error))
        if is_infer:
            self._metrics.count(status, time.monotonic() - started, missing)
        headers = [
            (b"content-type", content_type),
            (b"content-length", str(len(body)).encode()),
        ]
        if status >= 400 or not is_infer:  # the answer to a POST is not stored, and holds numbers
            headers += _GET_HEADERS
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status >= 400 and is_infer:
            headers.append((b"connection", b"close"))  # its body may not have been read
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _check_client(self, path: str, headers: Headers) -> None:
        if self._allows_host is not None:
            host = headers.get(b"host", b"").decode("latin-1")
            if not self._allows_host(host) or b"origin" in headers:
                raise RequestError(
                    "requests of web pages are refused; set serve.token_file", status=403
                )
        if self._token is not None and path not in _OPEN:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                raise RequestError("expected the header Authorization: Bearer TOKEN", status=401)

    def _get(self, scope: Scope) -> tuple[int, bytes, bytes]:
        """The answer to a request without a body: status, content and type."""
        path = scope["path"].rstrip("/")
        health = self._health
        if scope["method"] not in ("GET", "HEAD"):
            raise RequestError("expected GET", status=405)
        if path == "/v2/health/live":
            return 200, json.dumps({"live": True}).encode(), _JSON
        if path == "/v2/health/ready":
            ready = health.is_ready()
            return 200 if ready else 503, json.dumps({"ready": ready}).encode(), _JSON
        if path == "/v2":
            content = {"name": PLATFORM, "version": __version__, "extensions": []}
            return 200, json.dumps(content).encode(), _JSON
        if path == "/metrics":
            return 200, self._metrics.text().encode(), CONTENT_TYPE.encode()
        return self._get_model(path)

    def _get_model(self, path: str) -> tuple[int, bytes, bytes]:
        served, rest = self._find_model(path)
        if rest == ["ready"]:
            ready = self._health.is_complete()
            content: dict[str, Any] = {"name": self._settings.name, "ready": ready}
            return 200 if ready else 503, json.dumps(content).encode(), _JSON
        if rest:
            raise RequestError("no such path", status=404)
        columns = {} if served.encoder is None else served.encoder.columns
        model = served.model
        names = model.facts.label_map.names
        content = metadata(self._settings.name, served.name, columns, num_classes(model), names)
        return 200, json.dumps(content).encode(), _JSON

    def _find_model(self, path: str) -> tuple[ServedModel, list[str]]:
        """The model of /v2/models/NAME[/versions/VERSION], and the rest of the path."""
        parts = path.strip("/").split("/")
        if parts[:2] != ["v2", "models"] or len(parts) < 3:
            raise RequestError("no such path", status=404)
        if parts[2] != self._settings.name:
            raise RequestError(
                f"no such model; this server has {self._settings.name!r}", status=404
            )
        served = self._health.current()
        if served is None:
            raise RequestError("no model is loaded yet; retry later", status=503)
        rest = parts[3:]
        if rest[:1] == ["versions"]:
            if rest[1:2] != [served.name]:
                raise RequestError(f"no such version; version {served.name} is served", status=404)
            rest = rest[2:]
        return served, rest

    async def _infer(
        self, scope: Scope, headers: Headers, receive: Receive
    ) -> tuple[bytes, list[list[str]]]:
        version = None
        if scope["path"] != self._infer_path:
            served, rest = self._find_model(scope["path"])
            if rest != ["infer"]:
                raise RequestError("no such path", status=404)
            version = served.name if "/versions/" in scope["path"] else None
        if scope["method"] != "POST":
            raise RequestError("expected POST", status=405)
        if self._in_progress >= self._settings.max_requests:
            raise RequestError(
                f"more than {self._settings.max_requests} requests at once; retry later", status=429
            )
        self._in_progress += 1
        try:
            body = await self._read(headers, receive)
            request = parse_request(body, self._settings.max_rows)
            answer = await self._submit(request)
        finally:
            self._in_progress -= 1
        if version is not None and answer.model != version:
            raise RequestError(f"no such version; version {answer.model} is served", status=404)
        return render_answer(self._settings.name, request, answer), answer.missing

    async def _submit(self, request: InferRequest) -> Answer:
        """Pass a request to what scores it; raises the error of its outcome."""
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        future: asyncio.Future[Outcome] = loop.create_future()

        def resolve(outcome: Outcome) -> None:
            if not future.done():  # else the client has gone
                future.set_result(outcome)

        def done(outcome: Outcome) -> None:
            if threading.get_ident() == thread:
                resolve(outcome)
            else:
                loop.call_soon_threadsafe(resolve, outcome)

        deadline_at = time.monotonic() + self._settings.deadline_ms / 1000
        self._scoring.submit(Job(request, deadline_at, done))
        outcome = await future
        if isinstance(outcome, Answer):
            return outcome
        raise outcome if isinstance(outcome, CeluError) else CeluError("unexpected error")

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        """The body of a request; raises RequestError (413) if it is too large."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        num_bytes = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise RequestError("the client closed the connection")
            chunk = message.get("body", b"")
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                raise self._too_large()
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _too_large(self) -> RequestError:
        return RequestError(f"expected a body of at most {self._max_bytes} bytes", status=413)

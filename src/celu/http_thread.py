"""An HTTP server on a thread of its own: what a dashboard and a serving guest have in common."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Self

import uvicorn

from celu.errors import ConfigError
from celu.http_limits import BoundedHttp

_SPARE_S = 5.0  # for the thread to end, after requests had their time


class HttpThread:
    """A context manager that serves an ASGI application at `url`, and drains it on exit.

    `setting` is what errors name for the address, `stop_s` the time that requests in progress have
    on exit. More requests at a time than `max_requests` are answered with 503. Raises ConfigError
    if the address is not available.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        host: str,
        port: int,
        *,
        setting: str,
        name: str,
        stop_s: float,
        http: type[BoundedHttp] = BoundedHttp,
        tls: ssl.SSLContext | None = None,
        max_requests: int | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=http,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=max_requests,
            # asyncio accepts that many at a time before it closes those that are too many.
            backlog=http.max_connections,
            timeout_graceful_shutdown=round(stop_s),
        )
        config.load()
        config.ssl = tls
        self._server = uvicorn.Server(config)
        self._stop_s = stop_s
        self._ended = threading.Event()
        # A daemon thread, so that the process never waits for a client when it ends.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._socket = _listen(host, port, setting)
        scheme, shown = "http" if tls is None else "https", f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.should_exit = True
        if self.wait(self._stop_s + _SPARE_S):
            self._thread.join(_SPARE_S)
        self._socket.close()

    @property
    def is_closing(self) -> bool:
        """Whether the server was told to stop."""
        return self._server.should_exit

    def wait(self, seconds: float) -> bool:
        """Wait for the server to end; False after this time."""
        # Not Thread.join: in Python 3.11, a join interrupted by Ctrl-C marks the thread as ended.
        return self._ended.wait(seconds)

    def _serve(self) -> None:
        try:
            self._server.run([self._socket])
        finally:
            self._ended.set()


def _listen(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Accepted sockets inherit it. Else the body of an answer, which is sent after the headers,
        # waits for the client's delayed acknowledgement: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise ConfigError(
            f"{setting}: cannot listen at {host}, port {port} ({error.strerror or error}); "
            "choose an address of this machine and a free port (0 for any)"
        ) from error

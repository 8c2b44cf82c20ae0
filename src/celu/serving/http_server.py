"""The HTTP server of a serving guest, on a thread: its socket, TLS, token and limits."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

from celu.config.serve import ServeSettings
from celu.errors import CertificateError, ConfigError
from celu.serving.http import HttpApp

try:
    import uvicorn

    from celu.http_limits import BoundedHttp
except ImportError as error:
    raise ConfigError(
        'serve: the package uvicorn is not installed; install it with: pip install "celu[serve]"'
    ) from error

DRAIN_S = 30.0  # for requests in progress, when the server stops
_MIN_TOKEN = 16
_SPARE_CONNECTIONS = 64  # for probes and metrics while all requests are in use


class HttpServer:
    """A context manager that serves an application at `url`, and drains it on exit.

    Raises ConfigError if the address is not available.
    """

    def __init__(self, settings: ServeSettings, app: HttpApp) -> None:
        host, port = settings.listen.rsplit(":", 1)
        host = host.strip("[]")
        context = _tls(settings)
        self._socket = _listen(host, int(port))
        scheme = "http" if context is None else "https"
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{self._socket.getsockname()[1]}"
        max_connections = settings.max_requests + _SPARE_CONNECTIONS
        http = type("ServeHttp", (BoundedHttp,), {"max_connections": max_connections})
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
            backlog=max_connections,
            timeout_graceful_shutdown=round(DRAIN_S),
        )
        config.load()
        config.ssl = context
        self._server = uvicorn.Server(config)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.should_exit = True
        self._ended.wait(DRAIN_S + 5.0)
        self._socket.close()

    def wait(self, seconds: float) -> bool:
        """Wait for the server to end; False after this time."""
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            self._server.run([self._socket])
        finally:
            self._ended.set()


def read_token(path: Path | None) -> bytes | None:
    """The token in a file, without white space around it; raises ConfigError."""
    if path is None:
        return None
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"serve.token_file: {path}: {error.strerror}") from error
    if len(token) < _MIN_TOKEN or not token.isascii() or any(b <= 32 for b in token):
        raise ConfigError(
            f"serve.token_file: {path}: expected a token of at least {_MIN_TOKEN} characters on "
            'one line, such as from "openssl rand -hex 32"'
        )
    return token


def _tls(settings: ServeSettings) -> ssl.SSLContext | None:
    if settings.certificate is None or settings.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.ca is not None:
            context.load_verify_locations(settings.ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(
            f"serve.certificate, key or ca: expected readable PEM files, got: {error}"
        ) from error
    return context


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Accepted sockets inherit it. Else the body of an answer, which is sent after the headers,
        # waits for the client's delayed acknowledgement: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise ConfigError(
            f"serve.listen: cannot listen at {host}, port {port} ({error.strerror or error}); "
            "choose an address of this machine and a free port (0 for any)"
        ) from error

"""The HTTP server of a serving guest, on a thread: its socket, TLS, token and limits."""

from __future__ import annotations

import ssl
from pathlib import Path

from celu.config.serve import ServeSettings
from celu.errors import CertificateError, ConfigError
from celu.serving.http import HttpApp

try:
    from celu.http_limits import BoundedHttp
    from celu.http_thread import HttpThread
except ImportError as error:
    raise ConfigError(
        'serve: the package uvicorn is not installed; install it with: pip install "celu[serve]"'
    ) from error

DRAIN_S = 30.0  # for requests in progress, when the server stops
_MIN_TOKEN = 16
_SPARE_CONNECTIONS = 64  # for probes and metrics while all requests are in use


class HttpServer(HttpThread):
    """A context manager that serves an application at `url`, and drains it on exit.

    Raises ConfigError if the address is not available, CertificateError for files that are no PEM.
    """

    def __init__(self, settings: ServeSettings, app: HttpApp) -> None:
        host, port = settings.listen.rsplit(":", 1)
        max_connections = settings.max_requests + _SPARE_CONNECTIONS
        super().__init__(
            app,
            host.strip("[]"),
            int(port),
            setting="serve.listen",
            name="http",
            stop_s=DRAIN_S,
            http=type("ServeHttp", (BoundedHttp,), {"max_connections": max_connections}),
            tls=_tls(settings),
        )


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

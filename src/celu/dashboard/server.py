"""The dashboard's HTTP server, in a thread of `celu run` or of `celu dashboard`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType

from celu.dashboard.live import open_runs
from celu.errors import ConfigError

try:
    import uvicorn

    from celu.dashboard.routes import application
    from celu.http_limits import LOOPBACK, AllowedHosts, BoundedHttp
except ImportError as error:
    raise ConfigError(
        "dashboard: the packages starlette and uvicorn are not installed; "
        'install them with: pip install "celu[dashboard]"'
    ) from error

# Requests and streams; a page has one stream. Above it, a request is answered with 503.
MAX_CONCURRENT = 32
_STOP_S = 5.0  # for streams to send their last update


class Dashboard:
    """A context manager that serves run folders at `url`.

    `host` is an address of this machine; `port` 0 means any free port. An address that other
    machines can reach needs `expose`, because there is no login. Raises ConfigError if a folder
    holds no run, or the address is invalid, not allowed or in use.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        expose: bool = False,
        metrics: bool = False,
    ) -> None:
        hosts = _allowed_hosts(host, expose)
        self._socket = _listen(host, port)
        url_host = f"[{host}]" if ":" in host else host
        self.url = f"http://{url_host}:{self._socket.getsockname()[1]}/"
        try:
            app = application(
                open_runs(paths),
                hosts,
                metrics=metrics,
                is_closing=lambda: self._server.should_exit,
            )
        except BaseException:
            self._socket.close()
            raise
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=BoundedHttp,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=MAX_CONCURRENT,
                # asyncio accepts that many at a time before it closes those that are too many.
                backlog=BoundedHttp.max_connections,
                timeout_graceful_shutdown=round(_STOP_S),
            )
        )
        self._ended = threading.Event()
        # A daemon thread, so that a run never waits for a browser when it ends.
        self._thread = threading.Thread(target=self._serve, name="dashboard", daemon=True)

    def __enter__(self) -> Dashboard:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        if self._ended.wait(_STOP_S + 1.0):
            self._thread.join(1.0)
        self._socket.close()

    def wait(self, seconds: float) -> bool:
        """Wait for the server to end; False after this timeout."""
        # Not Thread.join: in Python 3.11, a join interrupted by Ctrl-C marks the thread as ended.
        return self._ended.wait(seconds)

    def _serve(self) -> None:
        try:
            self._server.run([self._socket])
        finally:
            self._ended.set()


def _allowed_hosts(host: str, expose: bool) -> AllowedHosts:
    """The Host headers to accept; raises ConfigError for an address that needs `--expose`."""
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise ConfigError(
            f"--host: expected an address of this machine, such as 127.0.0.1, got {host!r}"
        ) from error
    if address.is_loopback:
        return AllowedHosts(LOOPBACK | {str(address)})
    if not expose:
        raise ConfigError(
            f"--host: other machines can reach {host}, and there is no login: anyone who can "
            "connect would see the runs; use 127.0.0.1 and forward a port (ssh -L), or add "
            "--expose if you mean it"
        )
    own = {socket.gethostname().lower(), socket.getfqdn().lower()}
    return AllowedHosts(LOOPBACK | own, any_address=True)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"--host, --port: cannot listen at {host}, port {port} ({error.strerror or error}); "
            "choose an address of this machine and a free port (0 for any)"
        ) from error

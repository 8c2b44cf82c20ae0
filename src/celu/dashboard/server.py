"""The dashboard's server: a thread that answers browsers, beside a run or by itself."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType

from celu.dashboard.live import watch
from celu.errors import ConfigError

try:
    import uvicorn

    from celu.dashboard.routes import LOOPBACK, Names, application
except ImportError as error:
    raise ConfigError(
        "dashboard: expected the packages starlette and uvicorn, got none; "
        'install them with: pip install "celu[dashboard]"'
    ) from error

_STOP_S = 5.0  # for browsers to be told that it ends
_MOST_AT_ONCE = 32  # requests and streams; a page has one stream


class Dashboard:
    """Serves run folders while it is entered; `url` is where.

    `host` is an address of this machine, `port` 0 is any that is free. One that other machines can
    reach needs `expose`: there is no login. Raises ConfigError, where a folder holds no run, an
    address cannot be had, or is not one to serve at.
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
        names = _names(host, expose)
        self._socket = _bound(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}/"
        try:
            app = application(
                watch(paths), names, metrics=metrics, is_closing=lambda: self._server.should_exit
            )
        except BaseException:
            self._socket.close()
            raise
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_MOST_AT_ONCE,
                timeout_graceful_shutdown=round(_STOP_S),
            )
        )
        self._ended = threading.Event()
        # A daemon: however a run ends, nobody waits for a browser.
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
        """Whether it has ended, within so many seconds."""
        # Not by joining the thread: Python 3.11 takes a join that Ctrl-C interrupts for its end.
        return self._ended.wait(seconds)

    def _serve(self) -> None:
        try:
            self._server.run([self._socket])
        finally:
            self._ended.set()


def _names(host: str, expose: bool) -> Names:
    """By which names a dashboard at an address may be asked for."""
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise ConfigError(
            f"--host: expected an address of this machine, such as 127.0.0.1, got {host!r}"
        ) from error
    if address.is_loopback:
        return Names(LOOPBACK | {str(address)})
    if not expose:
        raise ConfigError(
            f"--host: expected an address of loopback, got {host}, which other machines reach: "
            "whoever can connect sees the run, for there is no login; add --expose if that is "
            "meant, or forward a port (ssh -L)"
        )
    own = {socket.gethostname().lower(), socket.getfqdn().lower()}
    return Names(LOOPBACK | own, any_address=True)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"--host, --port: expected an address of this machine with a port that is free, got "
            f"{host}, port {port} ({error.strerror or error}); 0 takes any port"
        ) from error

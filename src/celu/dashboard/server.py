"""The dashboard's HTTP server, in a thread of `celu run` or of `celu dashboard`."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from celu.dashboard.live import open_runs
from celu.errors import ConfigError

try:
    from celu.dashboard.routes import application
    from celu.http_limits import LOOPBACK, AllowedHosts
    from celu.http_thread import HttpThread
except ImportError as error:
    raise ConfigError(
        "dashboard: the packages starlette and uvicorn are not installed; "
        'install them with: pip install "celu[dashboard]"'
    ) from error

# Requests and streams; a page has one stream. Above it, a request is answered with 503.
MAX_CONCURRENT = 32
_STOP_S = 5.0  # for streams to send their last update


class Dashboard(HttpThread):
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
        app = application(
            open_runs(paths), hosts, metrics=metrics, is_closing=lambda: self.is_closing
        )
        super().__init__(
            app,
            host,
            port,
            setting="--host, --port",
            name="dashboard",
            stop_s=_STOP_S,
            max_requests=MAX_CONCURRENT,
        )
        self.url += "/"


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

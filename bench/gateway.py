"""Link utilization while training through nginx, compared with a direct connection.

Two real processes, with a link emulated by `link_proxy` between the host and the gateway, so that
the link's delay affects HTTP/2 and the gateway as a real one would. nginx runs on the guest's
machine, with the default configuration of its package.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.link_proxy import LinkProxy
from bench.link_utilization import PARTIES, link_utilization, write_job
from bench.nginx import find_nginx, running_nginx
from bench.report import Log
from bench.step import THIN
from celu.config.link import find_link
from celu.config.templates import write_settings
from celu.testing import free_port, make_keys, run_parties

DEPTH = 4


@dataclass(frozen=True)
class Case:
    """A route from the host to the guest. A slow route runs few rounds."""

    name: str
    rounds: int
    carrier: str = "grpc"
    streams: int = 1
    nginx: bool = True


CASES = (
    Case("gRPC, direct", 40, nginx=False),
    Case("gRPC, one stream, nginx", 12),
    Case("gRPC, 32 streams, nginx", 40, streams=32),
    Case("WebSocket, nginx", 40, carrier="websocket"),
)


def gateway_rows(folder: Path, profile: str, log: Log) -> list[dict[str, Any]]:
    """The link utilization in each case; `folder` has the rows and keys of both parties."""
    rows = []
    link = find_link(profile)
    for case in CASES:
        if case.nginx and find_nginx() is None:
            continue
        events = _run(folder, case, profile)
        sent, received = (
            link_utilization(events, direction, link.mbps, DEPTH)
            for direction in ("sent", "received")
        )
        rows.append(
            {
                "way": case.name,
                "rounds in flight": DEPTH,
                "line in use, host to guest": sent,
                "guest to host": received,
            }
        )
        log(f"{case.name}: link utilization {sent:.3f} and {received:.3f}")
    return rows


def nginx_use(rows: list[dict[str, Any]]) -> float | None:
    """The utilization of the less used direction in the best case with nginx; None without it."""
    through = [row for row in rows if "nginx" in row.get("way", "")]
    return max(
        (min(row["line in use, host to guest"], row["guest to host"]) for row in through),
        default=None,
    )


def _run(folder: Path, case: Case, profile: str) -> list[dict[str, Any]]:
    """Run both parties and return the host's events."""
    job, port = folder / "gateway.toml", free_port()
    write_job(job, rounds=case.rounds, codec="fp32", depth=DEPTH)
    write_settings(folder, THIN, port=port, local=True)
    with ExitStack() as stack:
        near = port
        if case.nginx:
            make_keys(folder, ["localhost"])
            certs = folder / "localhost" / "certs"
            near = stack.enter_context(
                running_nginx(
                    folder / "nginx", port, certs / "localhost.pem", certs / "localhost.key"
                )
            )
        far = stack.enter_context(LinkProxy(near, find_link(profile)))
        _edit(folder, case, port, far.port)
        out = f"run-{time.monotonic_ns()}"
        return run_parties(folder, list(PARTIES), job, out, timeout_s=120)["host"].events


def _edit(folder: Path, case: Case, port: int, far: int) -> None:
    """Write the route into the settings: host, emulated link, nginx if any, guest."""
    for name in PARTIES:
        path = folder / name / "party.toml"
        text = f'carrier = "{case.carrier}"\n' + path.read_text(encoding="utf-8")
        if name == "guest" and case.nginx:
            text = f"gateway = true\n{text}"
        route = f'connect = "localhost:{far}"\nstreams = {case.streams}\n'
        if case.nginx:
            route += 'gateway = { ca = "../localhost/certs/ca.pem" }\n'
        path.write_text(text.replace(f'connect = "localhost:{port}"\n', route), encoding="utf-8")

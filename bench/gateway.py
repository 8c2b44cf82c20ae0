"""How full a line is while training through nginx, against a direct connection.

Two real processes with a line between the host and the gateway, as `line_proxy` emulates it, so
that what HTTP/2 and a gateway make of a long line shows. nginx stands beside the guest, as it
comes with its package.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.line_proxy import LineProxy
from bench.line_use import PARTIES, line_use, write_job
from bench.nginx import find_nginx, running_nginx
from bench.report import Say
from bench.step import THIN
from celu.config.link import find_link
from celu.config.templates import write_settings
from celu.testing import free_port, make_keys, run_parties

DEPTH = 4


@dataclass(frozen=True)
class Case:
    """A way from the host to the guest. One that crawls is given few rounds."""

    what: str
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


def gateway_rows(folder: Path, profile: str, say: Say) -> list[dict[str, Any]]:
    """The share of the line in use in each case; `folder` holds rows and keys of both parties."""
    rows = []
    line = find_link(profile)
    for case in CASES:
        if case.nginx and find_nginx() is None:
            continue
        events = _run(folder, case, profile)
        sent, received = (line_use(events, way, line.mbps, DEPTH) for way in ("sent", "received"))
        rows.append(
            {
                "way": case.what,
                "rounds in flight": DEPTH,
                "line in use, host to guest": sent,
                "guest to host": received,
            }
        )
        say(f"{case.what}: {sent:.3f} and {received:.3f} of the line")
    return rows


def nginx_use(rows: list[dict[str, Any]]) -> float | None:
    """The emptier direction of the fullest way through nginx; None where there is no nginx."""
    through = [row for row in rows if "nginx" in row.get("way", "")]
    return max(
        (min(row["line in use, host to guest"], row["guest to host"]) for row in through),
        default=None,
    )


def _run(folder: Path, case: Case, profile: str) -> list[dict[str, Any]]:
    """The host's events of a real run."""
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
        far = stack.enter_context(LineProxy(near, find_link(profile)))
        _edit(folder, case, port, far.port)
        out = f"run-{time.monotonic_ns()}"
        return run_parties(folder, list(PARTIES), job, out, timeout_s=120)["host"].events


def _edit(folder: Path, case: Case, port: int, far: int) -> None:
    """Put the way into the settings: nginx behind the line, the guest behind nginx."""
    for name in PARTIES:
        path = folder / name / "party.toml"
        text = f'carrier = "{case.carrier}"\n' + path.read_text(encoding="utf-8")
        if name == "guest" and case.nginx:
            text = f"gateway = true\n{text}"
        way = f'connect = "localhost:{far}"\nstreams = {case.streams}\n'
        if case.nginx:
            way += 'gateway = { ca = "../localhost/certs/ca.pem" }\n'
        path.write_text(text.replace(f'connect = "localhost:{port}"\n', way), encoding="utf-8")

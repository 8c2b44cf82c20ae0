"""`scripts/bench link`: link utilization while training, and how accurate virtual time is.

Utilization is the bytes that the link carried over the bytes that it could have carried. Messages
of 4 MiB each way and almost no computing make the link the bottleneck: with one round at a time one
of its directions idles, with rounds in flight neither should. Every run is two processes over
mutual TLS with an emulated link; virtual time is the same job in one process.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from bench.gateway import gateway_rows, nginx_use
from bench.link_utilization import PARTIES, link_utilization, write_job
from bench.real_path import RealPath, compare
from bench.report import BenchResult, Log
from bench.step import BATCH, WIDTH, write_pair
from celu.config.job import read_job
from celu.config.link import find_link
from celu.config.party import read_party
from celu.config.templates import write_settings
from celu.events import Event, RoundDone
from celu.launch.loading import load_party
from celu.party import Guest, Host
from celu.simulation import simulate
from celu.testing import EventDict, free_port, run_parties

# Codec, rounds in flight.
CASES = (("fp32", 1), ("fp32", 2), ("fp32", 4), ("fp32", 8), ("int8", 1), ("int8", 8))


def bench_link(
    log: Log, profile: str = "wan-300", between: RealPath | None = None, rounds: int = 60
) -> BenchResult:
    """Vanilla training over the link, serial and with rounds in flight."""
    torch.set_num_threads(1)
    result = BenchResult("link", [1])
    link = find_link(profile)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_pair(folder, thin=True, rounds=rounds)
        for codec, depth in CASES:
            job = folder / "link.toml"  # write_settings overwrites job.toml
            write_job(job, rounds=rounds, codec=codec, depth=depth)
            events = _run(folder, job, profile)
            real = _seconds(events)
            virtual = _virtual(folder, job, profile)
            sent, received = (
                link_utilization(events, direction, link.mbps, depth)
                for direction in ("sent", "received")
            )
            result.rows.append(
                {
                    "codec": codec,
                    "rounds in flight": depth,
                    "line in use, host to guest": sent,
                    "guest to host": received,
                    "ms a round": 1000 * real / rounds,
                    "virtual ms a round": 1000 * virtual / rounds,
                    "virtual over real": virtual / real,
                }
            )
            log(f"{codec}, {depth} in flight: link utilization {sent:.3f} and {received:.3f}")
        real_path = compare(folder, between, profile, rounds, log) if between is not None else []
        through = gateway_rows(folder, profile, log)
    full = [row for row in result.rows if row["codec"] == "fp32"]
    result.figures |= {
        "duplex_use": max(min(r["line in use, host to guest"], r["guest to host"]) for r in full),
        "pingpong_use": min(full[0]["line in use, host to guest"], full[0]["guest to host"]),
        "virtual_over_real_worst": max(
            (row["virtual over real"] for row in result.rows), key=lambda ratio: abs(ratio - 1)
        ),
        "nginx_use": nginx_use(through),
        "duplex_use_real": max(
            (min(r["line in use, host to guest"], r["guest to host"]) for r in real_path[1:]),
            default=None,
        ),
        "emulated_over_real_worst": max(
            (row["emulated over real"] for row in real_path),
            key=lambda ratio: abs(ratio - 1),
            default=None,
        ),
    }
    result.rows += real_path + through
    result.notes.append(
        f"{profile}: {link.mbps:g} Mbps and {link.delay_ms:g} ms each way, emulated; "
        f"batch {BATCH}, Z {WIDTH}, one linear layer per party, {rounds} rounds. Utilization "
        "excludes the first quarter of the rounds and the last ones in flight. duplex_use is the "
        "less used direction of the best case in fp32."
    )
    result.notes.append(
        "Rows with a way have that link between the host and the guest's nginx, emulated by a "
        "proxy that delays both directions; nginx_use is the less used direction of the best case "
        "through nginx."
        if result.figures["nginx_use"] is not None
        else "nginx is not installed here: nginx_use was not measured."
    )
    if between is not None:
        result.notes.append(
            "The real path connects two network namespaces; its rows are compared with the same "
            "traffic over the emulated link."
        )
    return result


def _run(folder: Path, job: Path, profile: str) -> list[EventDict]:
    """Run both parties and return the host's events."""
    from bench.step import THIN

    write_settings(folder, THIN, port=free_port(), local=True)
    for name in PARTIES:
        path = folder / name / "party.toml"
        path.write_text(f'link = "{profile}"\n{path.read_text(encoding="utf-8")}')
    out = f"run-{time.monotonic_ns()}"
    return run_parties(folder, list(PARTIES), job, out, timeout_s=300)["host"].events


def _seconds(events: list[EventDict]) -> float:
    last: float = [e for e in events if e["event"] == "round"][-1]["seconds"]
    return last


def _virtual(folder: Path, job_file: Path, profile: str) -> float:
    """Simulate the same job; return the virtual seconds to its last round on the guest's clock."""
    job = read_job(job_file)
    loaded = {n: load_party(read_party(folder / n / "party.toml"), job, folder) for n in PARTIES}
    guest, host = loaded["guest"], loaded["host"]
    assert isinstance(guest, Guest) and isinstance(host, Host)
    seconds = 0.0

    def record(event: Event) -> None:
        nonlocal seconds
        if isinstance(event, RoundDone):
            seconds = event.seconds

    simulate(job, guest, {"host": host}, callbacks=[record], link=profile)
    return seconds

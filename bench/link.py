"""`celu bench link`: how full the line is while training, and whether virtual time tells the truth.

A line is full where the bytes it carried in some time are what it could have carried. Messages of 4
MiB each way and next to nothing to compute make the line the bottleneck: one round at a time it
idles in one direction or the other, and with rounds in flight it should not. Every run is two
processes over mutual TLS with emulated lines; virtual time is the same job in one process.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from bench.gateway import gateway_rows, nginx_use
from bench.line_use import PARTIES, line_use, write_job
from bench.real_path import RealPath, compare
from bench.report import BenchResult, Say
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
    say: Say, profile: str = "wan-300", between: RealPath | None = None, rounds: int = 60
) -> BenchResult:
    """Vanilla training over the line, serial and with rounds in flight."""
    torch.set_num_threads(1)
    result = BenchResult("link", [1])
    line = find_link(profile)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_pair(folder, thin=True, rounds=rounds)
        for codec, depth in CASES:
            job = folder / "link.toml"  # not job.toml, which settings come with
            write_job(job, rounds=rounds, codec=codec, depth=depth)
            events = _run(folder, job, profile)
            real = _seconds(events)
            virtual = _virtual(folder, job, profile)
            sent, received = (
                line_use(events, way, line.mbps, depth) for way in ("sent", "received")
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
            say(f"{codec}, {depth} in flight: {sent:.3f} and {received:.3f} of the line")
        real_path = compare(folder, between, profile, rounds, say) if between is not None else []
        through = gateway_rows(folder, profile, say)
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
        f"{profile}: {line.mbps:g} Mbps and {line.delay_ms:g} ms each way, emulated; "
        f"batch {BATCH}, Z {WIDTH}, one linear layer a party, {rounds} rounds; the "
        "first quarter and the last rounds in flight are left out of the line's use. duplex_use is "
        "the emptier direction of the fullest case in fp32."
    )
    result.notes.append(
        "Rows with a way have that line between the host and the guest's nginx, as a proxy that "
        "delays both directions; nginx_use is the emptier direction of the fullest way through it."
        if result.figures["nginx_use"] is not None
        else "nginx is not installed here: nginx_use was not measured."
    )
    if between is not None:
        result.notes.append(
            "The real path is one between two network namespaces; its rows stand beside the same "
            "traffic over the emulated line."
        )
    return result


def _run(folder: Path, job: Path, profile: str) -> list[EventDict]:
    """The host's events of a real run."""
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
    """Seconds to the last round of the same job in virtual time, by the guest's clock."""
    job = read_job(job_file)
    loaded = {n: load_party(read_party(folder / n / "party.toml"), job, folder) for n in PARTIES}
    guest, host = loaded["guest"], loaded["host"]
    assert isinstance(guest, Guest) and isinstance(host, Host)
    seconds = 0.0

    def note(event: Event) -> None:
        nonlocal seconds
        if isinstance(event, RoundDone):
            seconds = event.seconds

    simulate(job, guest, {"host": host}, callbacks=[note], link=profile)
    return seconds

"""`scripts/bench hostile`: memory of a listening party under attack, while it trains with a peer.

Two real processes train over an emulated WAN, once undisturbed and once for each kind of port.
Meanwhile a stranger floods the listener: with WebSocket PINGs whose answers it never reads, or with
gRPC streams that it never finishes. On a port with mutual TLS it has a peer's certificate; on a
port for a gateway it has none and connects past the gateway.
"""

from __future__ import annotations

import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.http2_flood import flood_streams
from bench.link_utilization import PARTIES
from bench.nginx import running_nginx
from bench.report import BenchResult, Log
from bench.step import THIN, write_pair
from bench.websocket_flood import flood_pings
from celu.config.link import find_link
from celu.config.party import MAX_DIRECT_STRIPES, MAX_STRIPES
from celu.config.templates import write_settings
from celu.testing import EventDict, free_port, make_keys, run_parties

LINK = "wan-300"
_SAMPLE_S = 0.05
_JOB = """\
batch_size = 64
rounds = {rounds}
[hosts.host]
z_width = 8
[method]
R = 1
[optimizer]
lr = 0.01
[evaluation]
every = {rounds}
rows = 1
metric = "loss"
"""
# Runs a party and writes its process id, by which its memory is found.
_START = """
import subprocess, sys
process = subprocess.Popen(sys.argv[2:])
open(sys.argv[1], "w").write(str(process.pid))
sys.exit(process.wait())
"""


@dataclass(frozen=True)
class Case:
    """A kind of port and an attack on it."""

    carrier: str
    gateway: bool

    @property
    def port(self) -> str:
        """For the table."""
        if self.gateway:
            return "for a gateway, without a certificate"
        return "with a peer's certificate"

    @property
    def flood(self) -> str:
        """For the table."""
        if self.carrier == "websocket":
            return "WebSocket PINGs, never reading"
        return "unfinished gRPC streams"


CASES = (
    Case("websocket", gateway=True),
    Case("websocket", gateway=False),
    Case("grpc", gateway=True),
    Case("grpc", gateway=False),
)


def bench_hostile(log: Log, seconds: float = 60.0) -> BenchResult:
    """Flood each kind of port for some seconds."""
    torch.set_num_threads(1)
    result = BenchResult("hostile", [1])
    link = find_link(LINK)
    # A round takes a round trip at least, so the run outlasts the flood.
    rounds = int(1.2 * seconds / (2 * link.delay_ms / 1000))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_pair(folder, thin=True, rounds=rounds)
        make_keys(folder, ["localhost"])
        (folder / "hostile.toml").write_text(_JOB.format(rounds=rounds), encoding="utf-8")
        undisturbed = _Run(folder, Case("grpc", gateway=False), "undisturbed", 0.0)
        undisturbed.train()
        log(f"undisturbed: {rounds} rounds, the memory grew by {undisturbed.growth_mib:.1f} MiB")
        for number, case in enumerate(CASES):
            run = _Run(folder, case, f"flooded-{number}", seconds)
            run.train()
            result.rows.append(
                {
                    "flood": case.flood,
                    "port": case.port,
                    "seconds": round(run.flooded_s, 1),
                    "growth, MiB": run.growth_mib,
                    "same bits": run.weights() == undisturbed.weights(),
                }
            )
            log(f"{case.flood}, port {case.port}: the memory grew by {run.growth_mib:.1f} MiB")
    result.figures |= {
        "websocket_growth_mib": _worst(result, "websocket"),
        "grpc_growth_mib": _worst(result, "grpc"),
        "undisturbed_growth_mib": undisturbed.growth_mib,
        "legitimate_run_unharmed": float(all(row["same bits"] for row in result.rows)),
    }
    result.notes.append(
        "Growth is the peak resident memory of the listening party during the flood, less its "
        "resident memory just before: it includes what the run itself needs meanwhile "
        "(undisturbed_growth_mib, over the same run without a flood). The flood has 8 "
        "connections, which are replaced when the party closes them, of up to 500 streams each. "
        f"legitimate_run_unharmed is 1 if every run of {rounds} rounds beside a flood ended with "
        "the weights of the undisturbed one, bit by bit."
    )
    return result


def _worst(result: BenchResult, carrier: str) -> float:
    return max(float(row["growth, MiB"]) for row in result.rows if carrier in row["flood"].lower())


class _Run:
    """A run of both parties, beside a flood of the guest's port."""

    def __init__(self, folder: Path, case: Case, out: str, seconds: float) -> None:
        self._folder, self._case, self._out, self._seconds = folder, case, out, seconds
        self.flooded_s = 0.0
        self._sizes: list[float] = []

    @property
    def growth_mib(self) -> float:
        """Peak memory less the memory when the first rounds were done."""
        return max(self._sizes) - self._sizes[0]

    def weights(self) -> list[bytes]:
        """The weights of each party."""
        return [
            (self._folder / name / self._out / "weights.safetensors").read_bytes()
            for name in PARTIES
        ]

    def train(self) -> None:
        """Run both parties to the end."""
        folder, port, pid = self._folder, free_port(), self._folder / f"{self._out}.pid"
        write_settings(folder, THIN, port=port, local=True)
        attacking: list[threading.Thread] = []

        def on_event(name: str, event: EventDict) -> None:
            if event["event"] == "round" and not attacking:  # both are connected
                attacking.append(threading.Thread(target=self._attack, args=(port, pid)))
                attacking[0].start()

        with ExitStack() as stack:
            near = port
            if self._case.gateway:
                certs = folder / "localhost" / "certs"
                keys = certs / "localhost.pem", certs / "localhost.key"
                near = stack.enter_context(running_nginx(folder / "nginx", port, *keys))
            self._edit_settings(port, near)
            run_parties(
                folder,
                list(PARTIES),
                folder / "hostile.toml",
                self._out,
                timeout_s=600 + 5 * self._seconds,
                on_event=on_event,
                command_prefix={"guest": [sys.executable, "-c", _START, str(pid)]},
            )
        for thread in attacking:
            thread.join(600)

    def _edit_settings(self, port: int, near: int) -> None:
        """Write the carrier, the emulated link and the route into both parties' settings."""
        for name in PARTIES:
            path = self._folder / name / "party.toml"
            text = f'carrier = "{self._case.carrier}"\nlink = "{LINK}"\n'
            text += path.read_text(encoding="utf-8")
            route = f'connect = "localhost:{near}"\n'
            if self._case.gateway:
                text = f"gateway = true\n{text}" if name == "guest" else text
                route += 'gateway = { ca = "../localhost/certs/ca.pem" }\n'
            text = text.replace(f'connect = "localhost:{port}"\n', route)
            path.write_text(text, encoding="utf-8")

    def _attack(self, port: int, pid: Path) -> None:
        started = time.monotonic()
        with _watched(int(pid.read_text(encoding="utf-8")), self._sizes) as over:
            if self._seconds:
                self._flood(port)
            else:
                over.wait(600)  # until the run has ended
        self.flooded_s = time.monotonic() - started

    def _flood(self, port: int) -> None:
        case, context = self._case, None
        if not case.gateway:
            context = _context(self._folder)
            if case.carrier == "grpc":
                context.set_alpn_protocols(["h2"])
        if case.carrier == "websocket":
            flood_pings(port, "host", context, self._seconds)
            return
        flood_streams(
            port,
            "host",
            context,
            self._seconds,
            stripes=MAX_STRIPES if case.gateway else MAX_DIRECT_STRIPES,
        )


def _context(folder: Path) -> ssl.SSLContext:
    """The TLS of a client with the host's certificate."""
    certs = {name: folder / name / "certs" for name in PARTIES}
    context = ssl.create_default_context(cafile=str(certs["guest"] / "ca.pem"))
    context.load_cert_chain(certs["host"] / "host.pem", certs["host"] / "host.key")
    return context


@contextmanager
def _watched(pid: int, sizes: list[float]) -> Iterator[threading.Event]:
    """Append the resident MiB of a process to `sizes`; yields an event that is set at its end."""
    over, stop = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            try:
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            except OSError:
                break
            found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
            if not found:  # it has ended
                break
            sizes.append(int(found[0]) / 1024)
            stop.wait(_SAMPLE_S)
        over.set()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        while not sizes and not over.is_set():  # the first sample is from before the flood
            over.wait(_SAMPLE_S)
        yield over
    finally:
        stop.set()
        thread.join(600)

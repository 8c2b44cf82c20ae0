"""A real link between two network namespaces, compared with the emulated one. Needs root.

The user sets up the link: two namespaces joined with the rate and delay of a profile. One-way
traffic is what `celu doctor` measures in one direction at a time; ping-pong is vanilla training,
one round at a time; duplex is the same with rounds in flight. The emulated link is measured in the
same way. Competing TCP streams vary from run to run, so each case runs three times, alternating
with the emulated link, and the median counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.link_utilization import PARTIES, link_utilization, write_job
from bench.report import Log
from bench.step import THIN
from celu.config.link import find_link
from celu.config.templates import write_settings
from celu.errors import ConfigError
from celu.testing import diagnose_parties, free_port, run_parties

DEPTHS = (1, 4, 8)
_TURNS = 3


@dataclass(frozen=True)
class RealPath:
    """Two network namespaces, and the guest's address in its own."""

    guest: str
    host: str
    address: str

    @staticmethod
    def read(text: str) -> RealPath:
        """Parse GUEST,HOST,ADDRESS; raises ConfigError."""
        parts = text.split(",")
        if len(parts) != 3 or not all(re.fullmatch(r"[\w.:-]+", part) for part in parts):
            raise ConfigError(
                "--between: expected the guest's namespace, the host's namespace and the guest's "
                f"address, separated by commas; got {text!r}"
            )
        return RealPath(*parts)

    def command_prefix(self) -> dict[str, list[str]]:
        """The command that runs a party's command in its namespace, for each party."""
        names = {"guest": self.guest, "host": self.host}
        return {party: ["ip", "netns", "exec", name] for party, name in names.items()}


def compare(
    folder: Path, path: RealPath, profile: str, rounds: int, log: Log
) -> list[dict[str, Any]]:
    """A row for each kind of traffic: the utilization of the real and of the emulated link."""
    rows = []

    def add(kind: str, real: tuple[float, float], emulated: tuple[float, float]) -> None:
        row = {"way": kind, "line in use, host to guest": real[0], "guest to host": real[1]}
        ratios = [e / r for e, r in zip(emulated, real, strict=True)]
        farthest = max(ratios, key=lambda ratio: abs(ratio - 1))
        rows.append({**row, "emulated over real": farthest})
        log(f"{kind}: {real[0]:.3f} and {real[1]:.3f}; emulated over real {farthest:.3f}")

    one_way = [_one_way(folder, where, profile) for where in (path, None)]
    add("real path, one way", *one_way)
    for depth in DEPTHS:
        job = folder / "real.toml"
        write_job(job, rounds=rounds, codec="fp32", depth=depth)
        turns = [
            [_utilization(folder, where, profile, job, depth) for where in (path, None)]
            for _ in range(_TURNS)
        ]
        real, emulated = (_median(side) for side in zip(*turns, strict=True))
        add(f"real path, {depth} in flight", real, emulated)
    return rows


def _utilization(
    folder: Path, path: RealPath | None, profile: str, job: Path, depth: int
) -> tuple[float, float]:
    """Train; return the link utilization to the guest and from it."""
    _settings(folder, path, profile)
    out = f"run-{time.monotonic_ns()}"
    prefix = path.command_prefix() if path else None
    names = list(PARTIES)
    runs = run_parties(folder, names, job, out, timeout_s=300, command_prefix=prefix)
    events, mbps = runs["host"].events, find_link(profile).mbps
    return link_utilization(events, "sent", mbps, depth), link_utilization(
        events, "received", mbps, depth
    )


def _median(turns: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The turn whose less used direction is the median of the turns."""
    return sorted(turns, key=min)[len(turns) // 2]


def _one_way(folder: Path, path: RealPath | None, profile: str) -> tuple[float, float]:
    """The utilization by traffic in one direction only: to the guest, and from it."""
    _settings(folder, path, profile)
    mbps = find_link(profile).mbps
    job = folder / "real.toml"
    write_job(job, rounds=1, codec="fp32", depth=1)
    prefix = path.command_prefix() if path else None
    found = diagnose_parties(folder, list(PARTIES), job, timeout_s=120, command_prefix=prefix)
    measured = found["guest"]["peers"]["host"]["measured"]
    return measured["to_guest"]["mbps"] / mbps, measured["to_host"]["mbps"] / mbps


def _settings(folder: Path, path: RealPath | None, profile: str) -> None:
    """Put the guest at its address in its namespace; or both here, with an emulated link."""
    port = free_port()
    write_settings(folder, THIN, port=port, local=True)
    for name in PARTIES:
        file = folder / name / "party.toml"
        text = file.read_text(encoding="utf-8")
        if path is None:
            text = f'link = "{profile}"\n{text}'
        else:
            text = text.replace(f'"localhost:{port}"', f'"{path.address}:{port}"')
            text = re.sub(r'listen = "[^"]*"', f'listen = "{path.address}:{port}"', text)
        file.write_text(text, encoding="utf-8")

"""Parties as real processes of this machine, over mutual TLS on loopback: for demo and bench."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celu.certs import make_authority, make_party
from celu.errors import CeluError

Event = dict[str, Any]


@dataclass(frozen=True)
class PartyRun:
    """What one party's process left behind."""

    exit_code: int
    events: list[Event]
    output: str


def make_keys(folder: Path, names: list[str]) -> None:
    """Each party's authority and certificate under FOLDER/NAME/certs, if not there yet."""
    for name in names:
        certs = folder / name / "certs"
        if not certs.exists():
            make_authority(certs, name)
            make_party(certs, name)


def free_port() -> int:
    """A port that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_parties(
    folder: Path,
    names: list[str],
    job: Path,
    out: str,
    *,
    timeout_s: float,
    watch: Callable[[str, Event], None] | None = None,
) -> dict[str, PartyRun]:
    """Run `celu run` for each FOLDER/NAME/party.toml; run folders are FOLDER/NAME/OUT.

    `watch` sees the events as they are written. Raises CeluError, with the output of the party
    that failed first, if any ends in an error or the time is up.
    """
    processes: dict[str, subprocess.Popen[str]] = {}
    seen = dict.fromkeys(names, 0)
    for name in names:
        command = [sys.executable, "-m", "celu.cli.app", "run", str(folder / name / "party.toml")]
        command += ["--job", str(job), "--out", str(folder / name / out)]
        log = (folder / name / f"{out}.log").open("w", encoding="utf-8")
        processes[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
        log.close()
    give_up = time.monotonic() + timeout_s
    try:
        while any(process.poll() is None for process in processes.values()):
            if time.monotonic() > give_up:
                raise CeluError(f"the parties were not done after {timeout_s:g} s: {folder}")
            if watch is not None:  # else nothing is read: a measurement wants the processor
                for name in names:
                    events = read_events(folder / name / out)
                    for event in events[seen[name] :]:
                        watch(name, event)
                    seen[name] = len(events)
            time.sleep(0.2)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    runs = {}
    for name, process in processes.items():
        output = (folder / name / f"{out}.log").read_text(encoding="utf-8")
        runs[name] = PartyRun(process.returncode, read_events(folder / name / out), output)
    failed = [name for name, run in runs.items() if run.exit_code != 0]
    if failed:
        shown = "\n".join(f"--- {name}\n{runs[name].output[-2000:]}" for name in failed)
        raise CeluError(f"a party failed:\n{shown}")
    return runs


def read_events(run_dir: Path) -> list[Event]:
    """The complete lines of a run's events file, which may still be growing."""
    path = run_dir / "events.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]

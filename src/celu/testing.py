"""Parties as real processes over mutual TLS on loopback: for the demo, benches and tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celu.certs import make_authority, make_party
from celu.errors import CeluError

EventDict = dict[str, Any]


@dataclass(frozen=True)
class PartyRun:
    """What one party's process left behind."""

    events: list[EventDict]
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
    watch: Callable[[str, EventDict], None] | None = None,
    inside: Mapping[str, list[str]] | None = None,
) -> dict[str, PartyRun]:
    """Run `celu run` for each FOLDER/NAME/party.toml; run folders are FOLDER/NAME/OUT.

    `watch` sees the events as they are written. `inside` gives a party's command what it is run by,
    such as `ip netns exec NAME`. Raises CeluError, with the output of the party that failed first,
    if any ends in an error or the time is up.
    """
    seen = dict.fromkeys(names, 0)

    def look() -> None:
        for name in names:
            events = read_events(folder / name / out)
            for event in events[seen[name] :]:
                assert watch is not None
                watch(name, event)
            seen[name] = len(events)

    commands = {
        name: [
            *(inside or {}).get(name, []),
            *_command("run", folder / name, job),
            *("--out", str(folder / name / out)),
        ]
        for name in names
    }
    logs = {name: folder / name / f"{out}.log" for name in names}
    # Without a watcher nothing is read: a measurement wants the processor.
    outputs = _run_together(commands, logs, timeout_s, look if watch is not None else None)
    return {name: PartyRun(read_events(folder / name / out), outputs[name]) for name in names}


def align_parties(folder: Path, names: list[str], job: Path, *, timeout_s: float) -> dict[str, str]:
    """Run `celu align` for each FOLDER/NAME/party.toml; what each printed.

    Raises CeluError as `run_parties` does.
    """
    commands = {name: _command("align", folder / name, job) for name in names}
    logs = {name: folder / name / "align.log" for name in names}
    return _run_together(commands, logs, timeout_s)


def diagnose_parties(
    folder: Path,
    names: list[str],
    job: Path,
    *,
    timeout_s: float,
    inside: Mapping[str, list[str]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Run `celu doctor` for each FOLDER/NAME/party.toml; what each wrote with --out.

    Otherwise as `run_parties`.
    """
    outs = {name: folder / name / "doctor.json" for name in names}
    commands = {
        name: [
            *(inside or {}).get(name, []),
            *_command("doctor", folder / name, job),
            *("--out", str(outs[name])),
        ]
        for name in names
    }
    logs = {name: folder / name / "doctor.log" for name in names}
    _run_together(commands, logs, timeout_s)
    return {name: json.loads(out.read_text(encoding="utf-8")) for name, out in outs.items()}


def _command(command: str, folder: Path, job: Path) -> list[str]:
    party = str(folder / "party.toml")
    return [sys.executable, "-m", "celu.cli.app", command, party, "--job", str(job)]


def _run_together(
    commands: dict[str, list[str]],
    logs: dict[str, Path],
    timeout_s: float,
    look: Callable[[], None] | None = None,
) -> dict[str, str]:
    processes: dict[str, subprocess.Popen[str]] = {}
    give_up = time.monotonic() + timeout_s
    try:
        for name, command in commands.items():
            with logs[name].open("w", encoding="utf-8") as log:
                processes[name] = subprocess.Popen(
                    command, stdout=log, stderr=subprocess.STDOUT, text=True
                )
        while any(process.poll() is None for process in processes.values()):
            if time.monotonic() > give_up:
                raise CeluError(f"the parties were not done after {timeout_s:g} s: {logs}")
            if look is not None:
                look()
            time.sleep(0.2)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    outputs = {name: log.read_text(encoding="utf-8") for name, log in logs.items()}
    failed = [name for name, process in processes.items() if process.returncode != 0]
    if failed:
        shown = "\n".join(f"--- {name}\n{outputs[name][-2000:]}" for name in failed)
        raise CeluError(f"a party failed:\n{shown}")
    return outputs


def read_events(run_dir: Path) -> list[EventDict]:
    """The complete lines of a run's events file, which may still be growing."""
    path = run_dir / "events.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]

"""Run parties as real processes over mutual TLS on loopback: for demos, benchmarks and tests.

It runs the installed commands (`celu run`, `celu align`, `celu doctor`), one process per party, and
returns their events and output. It does not write settings files or data.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celu.certs import make_authority, make_party
from celu.errors import CeluError

_FIRST_PORT, _ATTEMPTS = 15_000, 1000
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_STOP_S = 30.0  # for a server to answer the requests in progress
EventDict = dict[str, Any]  # an event as events.jsonl has it


@dataclass(frozen=True)
class PartyRun:
    """The events and the output of one party's process."""

    events: list[EventDict]
    output: str


def make_keys(folder: Path, names: list[str]) -> None:
    """Create a certificate authority and a certificate in FOLDER/NAME/certs, unless it exists."""
    for name in names:
        certs = folder / name / "certs"
        if not certs.exists():
            make_authority(certs, name)
            make_party(certs, name)


def free_port() -> int:
    """A loopback port that is free, and that no outgoing connection takes before it is used.

    It is below the ports that Linux gives to outgoing connections, if there are enough.
    """
    ports = range(_FIRST_PORT, _first_outgoing_port())
    chosen = secrets.SystemRandom()  # other numbers in each process, forked ones too
    for port in chosen.sample(ports, _ATTEMPTS) if len(ports) > _ATTEMPTS else ():
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _first_outgoing_port() -> int:
    try:
        return int(_OUTGOING_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _FIRST_PORT


def run_parties(
    folder: Path,
    names: list[str],
    job: Path,
    out: str,
    *,
    timeout_s: float,
    on_event: Callable[[str, EventDict], None] | None = None,
    command_prefix: Mapping[str, list[str]] | None = None,
) -> dict[str, PartyRun]:
    """Run `celu run` with each FOLDER/NAME/party.toml; run folders are FOLDER/NAME/OUT.

    `on_event` is called with a party's name and each of its events, as they are written.
    `command_prefix` is put before a party's command, such as `ip netns exec NAME`. Raises
    CeluError, with the output of the parties that failed, if one fails or the time is up.
    """
    num_seen = dict.fromkeys(names, 0)

    def poll() -> None:
        for name in names:
            events = read_events(folder / name / out)
            for event in events[num_seen[name] :]:
                assert on_event is not None
                on_event(name, event)
            num_seen[name] = len(events)

    commands = {
        name: [
            *(command_prefix or {}).get(name, []),
            *_command("run", folder / name, job),
            *("--out", str(folder / name / out)),
        ]
        for name in names
    }
    logs = {name: folder / name / f"{out}.log" for name in names}
    # Without a callback the events are not read while the parties run: a benchmark needs the CPU.
    outputs = _run_together(commands, logs, timeout_s, poll if on_event is not None else None)
    return {name: PartyRun(read_events(folder / name / out), outputs[name]) for name in names}


def align_parties(
    folder: Path, names: list[str], job: Path, *options: str, timeout_s: float
) -> dict[str, str]:
    """Run `celu align` with each FOLDER/NAME/party.toml; return what each printed.

    Raises CeluError as `run_parties` does.
    """
    commands = {name: [*_command("align", folder / name, job), *options] for name in names}
    logs = {name: folder / name / "align.log" for name in names}
    return _run_together(commands, logs, timeout_s)


def diagnose_parties(
    folder: Path,
    names: list[str],
    job: Path,
    *,
    timeout_s: float,
    command_prefix: Mapping[str, list[str]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Run `celu doctor` with each FOLDER/NAME/party.toml; return what each wrote with --out.

    `command_prefix` and errors are those of `run_parties`.
    """
    outs = {name: folder / name / "doctor.json" for name in names}
    commands = {
        name: [
            *(command_prefix or {}).get(name, []),
            *_command("doctor", folder / name, job),
            *("--out", str(outs[name])),
        ]
        for name in names
    }
    logs = {name: folder / name / "doctor.log" for name in names}
    _run_together(commands, logs, timeout_s)
    return {name: json.loads(out.read_text(encoding="utf-8")) for name, out in outs.items()}


@contextmanager
def serving_parties(folder: Path, names: list[str], serving: Path) -> Iterator[None]:
    """Run `celu serve` with each FOLDER/NAME/party.toml and FOLDER/NAME/models, while in the block.

    It does not wait until they are ready: the guest answers `/v2/health/ready` over HTTP.
    """
    processes = []
    try:
        for name in names:
            command = [sys.executable, "-m", "celu.cli.app", "serve"]
            command += [str(folder / name / "party.toml"), "--serving", str(serving)]
            command += ["--models", str(folder / name / "models")]
            with (folder / name / "serve.log").open("w", encoding="utf-8") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _command(command: str, folder: Path, job: Path) -> list[str]:
    party = str(folder / "party.toml")
    return [sys.executable, "-m", "celu.cli.app", command, party, "--job", str(job)]


def _run_together(
    commands: dict[str, list[str]],
    logs: dict[str, Path],
    timeout_s: float,
    poll: Callable[[], None] | None = None,
) -> dict[str, str]:
    processes: dict[str, subprocess.Popen[str]] = {}
    deadline = time.monotonic() + timeout_s
    try:
        for name, command in commands.items():
            with logs[name].open("w", encoding="utf-8") as log:
                processes[name] = subprocess.Popen(
                    command, stdout=log, stderr=subprocess.STDOUT, text=True
                )
        while any(process.poll() is None for process in processes.values()):
            if time.monotonic() > deadline:
                paths = ", ".join(str(log) for log in logs.values())
                raise CeluError(f"the parties did not finish in {timeout_s:g} s; see {paths}")
            if poll is not None:
                poll()
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
    """The events of a run folder so far: the complete lines of its events.jsonl."""
    path = run_dir / "events.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]

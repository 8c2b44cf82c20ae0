"""Parties as real processes: started, watched, signalled, and compared at the end.

Each has its own settings, rows, keys, socket and run folder, and runs `celu run`; it is forked from
a process that has imported torch already (`processes`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_file

from celu.checkpoint.generations import FOLDER
from celu.testing import EventDict, make_keys
from processes import ForkServer
from stores import write_store

GUEST, HOSTS = "guest", ["host", "other"]
ROUNDS, EVERY = 300, 5
# The deadline of every wait. A passing test never gets near it, even on a busy machine.
TIMEOUT_S = 900.0

JOB = f"""
seed = 1
batch_size = 32
rounds = {ROUNDS}
guest = "{GUEST}"
[method]
W = 3
R = 3
depth = 4
[checkpoint]
every = {EVERY}
[evaluation]
every = 50
"""
_HOST_TERMS = """
[hosts.{name}]
z_width = 8
"""
_PARTY = """
role = "{role}"
name = "{name}"
run_dir = "run"
threads = 1
{more}
[data]
store = "{store}"
aligned = true
[keys]
certificate = "{certs}/{name}/certs/{name}.pem"
key = "{certs}/{name}/certs/{name}.key"
[model]
bottom = {{ use = "wdl", hidden = [96, 96] }}
"""
_TOP = """top = "wdl"
loss = "binary"
"""
_PEER = """
[peers.{name}]
ca = "{certs}/{name}/certs/ca.pem"
"""
_SETTINGS: dict[str, Any] = {
    "carrier": "grpc",
    "connect_s": 600,
    "deadline_s": 600,
    "outage_s": 600,
    "heartbeat_s": 2,
}
# A delay, so that there are messages in flight to lose.
_LINK = "link = { mbps = 100, delay_ms = 2 }"


class Starter(Protocol):
    """Starts parties, and knows how they end."""

    def start(self, arguments: list[str], log: Path) -> int:
        """Start `celu` with these arguments; returns its process id."""
        ...

    def poll(self, pid: int) -> int | None:
        """The exit code of a process, as in `subprocess`; None while it runs."""
        ...

    def stop(self) -> None:
        """End every party that still runs."""
        ...


class Server:
    """Forks parties from a process of its own (`processes`)."""

    def __init__(self) -> None:
        self._server = ForkServer()

    def start(self, arguments: list[str], log: Path) -> int:
        """Start `celu` with these arguments; returns its process id."""
        with log.open("ab") as file:
            return self._server.start(arguments, file.fileno(), file.fileno())

    def poll(self, pid: int) -> int | None:
        """The exit code of a process, as in `subprocess`; None while it runs."""
        return self._server.poll(pid)

    def stop(self) -> None:
        """End the server and every party that still runs."""
        self._server.stop()


class Party:
    """One party's files, and its process while there is one."""

    def __init__(
        self, name: str, folder: Path, job: Path, server: Starter, options: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.folder = folder
        self.run = folder / "run"
        self.codes: list[int] = []  # how its processes ended, in order
        self.pid: int | None = None
        self.ended_at = 0.0
        self._events: list[EventDict] = []
        self._bytes_read = 0
        self._job = job
        self._server = server
        self._options = options

    def start(self) -> None:
        """Start `celu run`, with the same command line every time."""
        assert self.pid is None, f"{self.name} is running"
        line = ["run", str(self.folder / "party.toml"), "--job", str(self._job), *self._options]
        self.pid = self._server.start(line, self.log)

    @property
    def log(self) -> Path:
        """The file with the output of all its processes."""
        return self.folder / "log"

    @property
    def is_running(self) -> bool:
        """Whether its process runs; records the exit code when it has ended."""
        if self.pid is not None and (code := self._server.poll(self.pid)) is not None:
            self.pid, self.ended_at = None, time.monotonic()
            self.codes.append(code)
        return self.pid is not None

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal, if it has one."""
        if self.is_running:
            assert self.pid is not None
            os.kill(self.pid, number)

    def kill(self) -> bool:
        """Send SIGKILL and wait for the end; returns whether that killed a running process."""
        self.signal(signal.SIGKILL)
        before = len(self.codes)
        was_running = self.pid is not None
        if was_running:
            self.wait()
        return was_running and self.codes[before] == -signal.SIGKILL

    def wait(self, seconds: float = TIMEOUT_S) -> int:
        """Its exit code, once it has ended; AssertionError if it does not."""
        wait_for(
            lambda: not self.is_running, f"{self.name} to end", seconds, self.output_with_stacks
        )
        return self.codes[-1]

    def events(self, *kinds: str) -> list[EventDict]:
        """The events of all its processes so far, or those of some kinds."""
        file = self.run / "events.jsonl"
        if file.exists():
            with file.open("rb") as grown:
                grown.seek(self._bytes_read)
                lines = grown.read()
            end = lines.rfind(b"\n") + 1  # the last line may be torn, and cut off later
            self._events += [json.loads(line) for line in lines[:end].splitlines()]
            self._bytes_read += end
        return [e for e in self._events if not kinds or e["event"] in kinds]

    def latest(self) -> list[EventDict]:
        """The events of its current or last process."""
        events = self.events()
        begins = [i for i, event in enumerate(events) if event["event"] == "attempt"]
        return events[begins[-1] :] if begins else []

    def output(self) -> str:
        """The output of all its processes."""
        return self.log.read_text() if self.log.exists() else ""

    def output_with_stacks(self) -> str:
        """Its output, with a stack trace of each of its threads."""
        self.signal(signal.SIGUSR1)
        time.sleep(0.2)
        return self.output()

    def has_done(self, round_: int) -> bool:
        """Whether its current process has done this round."""
        return any(e["event"] == "round" and e["round"] >= round_ for e in self.latest())


@dataclass
class Federation:
    """A guest and its hosts."""

    folder: Path
    parties: dict[str, Party]
    port: int

    @property
    def guest(self) -> Party:
        """The party that listens."""
        return self.parties[GUEST]

    @property
    def host(self) -> Party:
        """The first host."""
        return self.parties[HOSTS[0]]

    def start(self) -> None:
        """Start the parties that are not running."""
        for party in self.parties.values():
            if not party.is_running:
                party.start()

    def wait(self, *codes: int) -> None:
        """Wait for all parties to end with code 0, or with these codes in order."""
        expected = codes or (0,) * len(self.parties)
        for party in self.parties.values():
            party.wait()
        ended = tuple(party.codes[-1] for party in self.parties.values())
        assert ended == expected, "\n".join(
            f"--- {party.name} {party.codes}\n{party.output()[-3000:]}"
            for party in self.parties.values()
        )

    def wait_for_rounds(self, count: int) -> None:
        """Wait until every party has done `count` more rounds."""
        before = {name: len(party.events("round")) for name, party in self.parties.items()}
        for name, party in self.parties.items():

            def is_there(party: Party = party, due: int = before[name] + count) -> bool:
                return len(party.events("round")) >= due

            wait_for(is_there, f"{count} rounds", output=party.output)

    def wait_for_checkpoint(self, round_: int) -> None:
        """Wait until every party has written a checkpoint of this round or of a later one."""
        for party in self.parties.values():

            def is_there(folder: Path = party.run / FOLDER) -> bool:
                return any(int(p.name[-8:]) >= round_ for p in folder.glob("round-*"))

            wait_for(is_there, f"a checkpoint of round {round_}", output=party.output)

    def stop(self) -> None:
        """Kill all parties that still run."""
        for party in self.parties.values():
            party.signal(signal.SIGCONT)
            party.kill()

    def assert_same_bits(self, baseline: Federation) -> None:
        """Weights and evaluations equal those of a run without faults."""
        for name, party in self.parties.items():
            expected = baseline.parties[name]
            ours, theirs = (load_file(p.run / "weights.safetensors") for p in (party, expected))
            assert ours.keys() == theirs.keys()
            for key, tensor in ours.items():
                assert torch.equal(tensor, theirs[key]), f"{name}: {key} differs"
            assert _ended(party) == _ended(expected)
            scores = {e["round"]: _scores(e) for e in expected.events("evaluation")}
            for event in party.events("evaluation"):  # including repeated ones
                assert _scores(event) == scores[event["round"]], event["round"]


class Environment:
    """Shared by all federations: rows, keys, and the server that starts parties."""

    def __init__(self, folder: Path, server: Starter | None = None) -> None:
        self.folder = folder
        self.keys = folder / "keys"
        self.server = server or Server()
        self._ports = random.Random(os.getpid())
        make_keys(self.keys, [GUEST, *HOSTS])
        rng = np.random.default_rng(1)
        x = rng.normal(size=(3, 512, 2)).astype(np.float32)
        label = (x[:, :, 0].sum(axis=0) > 0.5).astype(np.float32)
        for number, name in enumerate([GUEST, *HOSTS]):
            table = {"a": x[number, :, 0], "b": x[number, :, 1]}
            write_store(folder / name, {**table, "label": label} if name == GUEST else table)

    def federation(
        self,
        folder: Path,
        *,
        hosts: int = 1,
        via: int | None = None,
        keys: Path | None = None,
        job_text: str = JOB,
        link: str = _LINK,
        options: Sequence[str] = (),
        **settings: Any,
    ) -> Federation:
        """A federation in a folder; hosts connect to the port `via`, if it is not the guest's.

        `options` are those of every party's `celu run`.
        """
        names, port = HOSTS[:hosts], self.free_port()
        folder.mkdir(parents=True, exist_ok=True)
        job = folder / "job.toml"
        job.write_text(job_text + "".join(_HOST_TERMS.format(name=name) for name in names))
        for name in (GUEST, *names):
            is_guest, peers = name == GUEST, names if name == GUEST else [GUEST]
            values = {**_SETTINGS, **settings}
            lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
            lines += [link, f'listen = "127.0.0.1:{port}"' if is_guest else ""]
            certs = keys or self.keys
            text = _PARTY.format(
                role="guest" if is_guest else "host",
                name=name,
                more="\n".join(lines),
                store=self.folder / name,
                certs=certs,
            )
            text += _TOP if is_guest else ""
            for peer in peers:
                text += _PEER.format(name=peer, certs=certs)
                text += "" if is_guest else f'connect = "127.0.0.1:{via or port}"\n'
            (folder / name).mkdir()
            (folder / name / "party.toml").write_text(text)
        parties = {
            name: Party(name, folder / name, job, self.server, options) for name in (GUEST, *names)
        }
        return Federation(folder, parties, port)

    def free_port(self) -> int:
        """A free port outside the range that the kernel uses for outgoing connections.

        Otherwise a host that connects while its guest is down might connect to itself.
        """
        while True:
            port = self._ports.randrange(20_000, 32_000)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    return port

    def run_without_faults(self, folder: Path, **more: Any) -> Federation:
        """A federation whose run has finished without faults."""
        federation = self.federation(folder, **more)
        federation.start()
        federation.wait()
        return federation


@contextmanager
def open_environment(folder: Path, server: Starter | None = None) -> Iterator[Environment]:
    """An environment whose processes are killed at the end."""
    environment = Environment(folder, server)
    try:
        yield environment
    finally:
        environment.server.stop()


def wait_for(
    ready: Callable[[], bool],
    what: str,
    seconds: float = TIMEOUT_S,
    output: Callable[[], str] = lambda: "",
) -> None:
    """Poll every few milliseconds; AssertionError after `seconds`."""
    give_up = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < give_up, f"waited {seconds:g} s for {what}\n{output()[-3000:]}"
        time.sleep(0.005)


def _ended(party: Party) -> list[Any]:
    summary = json.loads((party.run / "summary.json").read_text())
    assert summary["status"] == "done"
    return [summary["rounds"], summary["local_steps"], *map(_scores, summary["evaluations"])]


def _scores(evaluation: Mapping[str, Any]) -> tuple[float, float]:
    return evaluation["auc"], evaluation["loss"]

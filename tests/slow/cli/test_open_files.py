"""A run with 1024 open files at most, while a stranger holds 1,600 connections to each port."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from celu.testing import free_port, read_events
from cli.pair import DEADLINE_S, Pair, celu, ended, pair_at

CROWD = 1600  # connections
FILES = 1024  # the limit of each party
ROUNDS = 150


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 5 * CROWD:
        pytest.skip(f"a process may not have {5 * CROWD:,} open files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (5 * CROWD, limits[1]))
    crowd = Crowd()
    yield crowd
    crowd.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Crowd:
    """A stranger's connections, which send nothing, and the processes that they reach."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.processes: list[subprocess.Popen[str]] = []

    def connect(self, ports: list[int]) -> None:
        for _ in range(CROWD):
            for port in ports:
                stranger = socket.socket()
                self.sockets.append(stranger)
                stranger.setblocking(False)  # it does not wait to be accepted
                with suppress(BlockingIOError):
                    stranger.connect(("127.0.0.1", port))

    def close(self) -> None:
        for stranger in self.sockets:
            stranger.close()
        for process in self.processes:
            process.kill()  # if the test has failed, it still runs
            process.wait(DEADLINE_S)


def start(pair: Pair, name: str, *more: str) -> subprocess.Popen[str]:
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))\n"
    command = [sys.executable, "-c", f"{limits}from celu.cli.app import main; main()", "run"]
    command += [str(pair.folder / name / "party.toml"), "--job", str(pair.folder / "job.toml")]
    return subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until_listening(ports: list[int]) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    for port in ports:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < give_up_at
            time.sleep(0.05)


def wait_for_rounds(pair: Pair, processes: list[subprocess.Popen[str]]) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while not any(e["event"] == "round" for e in read_events(pair.folder / "airline" / "run")):
        has_ended = any(process.poll() is not None for process in processes)
        if time.monotonic() > give_up_at or has_ended:
            for process in processes:
                process.kill()  # else its output would never end
            raise AssertionError([process.communicate() for process in processes])
        time.sleep(0.05)


def peak_descriptors(process: subprocess.Popen[str]) -> int:
    """How many files and connections a process had open at most, until it ended."""
    peak, give_up_at = 0, time.monotonic() + DEADLINE_S
    while process.poll() is None:
        assert time.monotonic() < give_up_at, "the run does not end"
        with suppress(OSError):  # it has just ended
            peak = max(peak, len(list(Path(f"/proc/{process.pid}/fd").iterdir())))
        time.sleep(0.01)
    return peak


@pytest.mark.parametrize("dashboard", [False, True], ids=["", "dashboard"])
@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_a_crowd_of_idle_connections_does_not_change_a_run(
    tmp_path: Path, keys: Path, crowd: Crowd, carrier: str, dashboard: bool
) -> None:
    pair = pair_at(tmp_path, keys)
    pair.edit("job.toml", "rounds = 60", f"rounds = {ROUNDS}\ncheckpoint.every = 20")
    for name in ("airline", "weather"):
        pair.edit(f"{name}/party.toml", "threads = 1", f'threads = 1\ncarrier = "{carrier}"')
    settings = [tmp_path / name / "party.toml" for name in ("airline", "weather")]
    simulated = celu("simulate", *settings, "--job", tmp_path / "job.toml", "--out", tmp_path / "s")
    assert simulated.returncode == 0, simulated.stderr
    ports, options = [pair.port], []
    if dashboard:
        ports.append(free_port())
        options = ["--dashboard", "--dashboard-port", str(ports[1])]
    guest = start(pair, "airline", *options)
    crowd.processes.append(guest)
    wait_until_listening(ports)
    crowd.connect(ports)  # before the peer
    host = start(pair, "weather", "--link", "wan-300")
    crowd.processes.append(host)
    wait_for_rounds(pair, crowd.processes)
    crowd.connect(ports)  # while it trains
    assert guest.poll() is None, "the run must still be in progress"
    peak = peak_descriptors(guest)
    for party in (ended(guest), ended(host)):
        assert party.code == 0 and "Traceback" not in party.err, party.err
    assert peak < FILES - 100, "some must be left for the run's own files"
    for name, simulated in (("airline", "s"), ("weather", "s/hosts/weather")):
        undisturbed = load_file(tmp_path / simulated / "weights.safetensors")
        weights = load_file(tmp_path / name / "run" / "weights.safetensors")
        assert weights
        for key, tensor in weights.items():
            assert torch.equal(tensor, undisturbed[key]), key


@pytest.mark.parametrize("command", ["run", "align", "doctor"])
def test_every_command_that_listens_raises_its_limit_of_open_files(
    tmp_path: Path, keys: Path, command: str
) -> None:
    pair = pair_at(tmp_path, keys)
    pair.edit("airline/party.toml", "connect_s = 600", "connect_s = 0.2")  # no peer comes
    if command == "align":
        pair.edit("airline/party.toml", "aligned = true", 'alignment = "alignment"')
    done = run_with_few_files(command, pair, "--job", "job.toml")
    assert done.returncode == 11 and "PeerLost" in done.stderr, done.stderr
    assert f"limit {FILES}" in done.stdout


@pytest.mark.parametrize(
    "options",
    [("predict", "--model", "no-model", "--out", "scores"), ("serve", "--models", "no-models")],
    ids=["predict", "serve"],
)
def test_a_command_that_uses_a_model_raises_its_limit_of_open_files(
    tmp_path: Path, keys: Path, options: tuple[str, ...]
) -> None:
    pair = pair_at(tmp_path, keys)
    (tmp_path / "serving.toml").write_text('guest = "airline"\nhosts = ["weather"]\n')
    done = run_with_few_files(options[0], pair, *options[1:], "--aligned")
    assert "no-model" in done.stderr, done.stderr  # it ends when it reads the model
    assert f"limit {FILES}" in done.stdout


def run_with_few_files(command: str, pair: Pair, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the guest with a low soft limit of open files, and print the limit then."""
    code = f"""import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, {FILES}))
from celu.cli.app import main
try:
    main()
finally:
    print("limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0])"""
    return subprocess.run(
        [sys.executable, "-c", code, command, "airline/party.toml", *options],
        cwd=pair.folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

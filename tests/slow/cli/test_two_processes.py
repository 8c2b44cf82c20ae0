"""`celu run` as two processes with real certificates and sockets."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bench.nginx import find_nginx, running_nginx
from celu.certs import make_authority, make_party
from celu.scores.file import read_scores
from celu.testing import read_events
from cli.pair import DEADLINE_S, Pair, celu, ended, pair_at
from processes import CeluProcess


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    return pair_at(tmp_path, keys)


def test_two_parties_train_to_a_target_and_write_their_run_folders(pair: Pair) -> None:
    with (pair.folder / "job.toml").open("a") as job:
        job.write("target = 0.75\n")
    guest, host = pair.run()
    assert (guest.code, host.code) == (0, 0), guest.err + host.err
    events = read_events(pair.folder / "airline" / "run")
    assert next(e for e in events if e["event"] == "connected")["secure"] is True
    last = [e for e in events if e["event"] == "evaluation"][-1]
    assert last["auc"] >= 0.75 and last["target_reached"]
    summary = json.loads((pair.folder / "weather" / "run" / "summary.json").read_text())
    assert summary["status"] == "done" and summary["rounds"] == last["round"]
    settings = json.loads((pair.folder / "airline" / "run" / "settings.json").read_text())
    assert settings["job"]["seed"] == 1 and "torch" in settings["versions"]
    weights = load_file(pair.folder / "airline" / "run" / "weights.safetensors")
    assert any(name.startswith("top.") for name in weights)
    scores = read_scores(pair.folder / "airline" / "run" / "scores.parquet")
    assert scores.labels is not None and scores.ids[0].as_py() == "test-0"
    assert not (pair.folder / "weather" / "run" / "scores.parquet").exists()
    # The host learns neither labels nor how well they are predicted.
    host_events = (pair.folder / "weather" / "run" / "events.jsonl").read_text()
    assert "auc" not in host_events and "loss" not in host_events


def test_replay_toml_repeats_a_run_with_automatic_tuning(pair: Pair) -> None:
    job = pair.folder / "job.toml"
    text = job.read_text()
    job.write_text('method = "auto"\n' + re.sub(r"rounds = \d+", "rounds = 120", text))
    link = ("--link", "wan-100")
    guest, host = pair.start("airline", *link), pair.start("weather", *link)
    for party in (ended(guest), ended(host)):
        assert party.code == 0, party.err
    record = pair.folder / "airline" / "run"
    choices = [e for e in read_events(record) if e["event"] == "choice"]
    assert choices and all(e["reason"] for e in choices)
    replayed = celu(
        "simulate",
        pair.folder / "airline" / "party.toml",
        pair.folder / "weather" / "party.toml",
        "--job",
        record / "replay.toml",
        "--out",
        pair.folder / "replay",
    )
    assert replayed.returncode == 0, replayed.stderr
    expected = load_file(record / "weights.safetensors")
    weights = load_file(pair.folder / "replay" / "weights.safetensors")
    for key, tensor in expected.items():
        assert torch.equal(tensor, weights[key]), key


def test_the_listening_party_prints_the_command_for_the_other_party(pair: Pair) -> None:
    # The host learns where the guest listens from --connect only.
    pair.edit("weather/party.toml", f'connect = "localhost:{pair.port}"', "")
    pair.edit("weather/party.toml", "threads = 1", 'threads = 1\nlisten = "127.0.0.1:1"')
    guest = pair.start("airline")
    assert guest.stdout is not None
    printed = ""
    while "--connect" not in printed:
        line = guest.stdout.readline()
        assert line, "the guest ended without saying where it listens"
        printed += line
    found = re.search(r"--connect (\S+)", printed)
    assert found is not None
    host = pair.start("weather", "--connect", found[1])
    assert ended(host).code == 0
    assert ended(guest).code == 0


def test_either_party_may_listen_and_the_weights_equal_those_of_a_simulation(pair: Pair) -> None:
    method = "[method]\nW = 3\nR = 3\n"
    with (pair.folder / "job.toml").open("a") as job:
        job.write(method)
    simulated = celu(
        "simulate",
        pair.folder / "airline" / "party.toml",
        pair.folder / "weather" / "party.toml",
        "--job",
        pair.folder / "job.toml",
        "--out",
        pair.folder / "simulation",
    )
    assert simulated.returncode == 0, simulated.stderr
    pair.edit("airline/party.toml", f'listen = "127.0.0.1:{pair.port}"', "")
    pair.edit(
        "airline/party.toml", "weather sent\n", f'weather sent\nconnect = "localhost:{pair.port}"\n'
    )
    pair.edit("weather/party.toml", f'connect = "localhost:{pair.port}"', "")
    pair.edit("weather/party.toml", "threads = 1", f'threads = 1\nlisten = "127.0.0.1:{pair.port}"')
    guest, host = pair.run()
    assert (guest.code, host.code) == (0, 0), guest.err + host.err
    for name, folder in (("airline", "simulation"), ("weather", "simulation/hosts/weather")):
        expected = load_file(pair.folder / folder / "weights.safetensors")
        weights = load_file(pair.folder / name / "run" / "weights.safetensors")
        for key, tensor in weights.items():
            assert torch.equal(tensor, expected[key]), key


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed here")
@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_two_parties_train_through_nginx(pair: Pair, tmp_path: Path, carrier: str) -> None:
    certs = tmp_path / "gateway"
    make_authority(certs, "gateway")
    make_party(certs, "localhost")
    with running_nginx(
        tmp_path / "nginx", pair.port, certs / "localhost.pem", certs / "localhost.key"
    ) as gateway_port:
        for name in ("airline", "weather"):
            pair.edit(f"{name}/party.toml", "threads = 1", f'threads = 1\ncarrier = "{carrier}"')
        pair.edit("airline/party.toml", "threads = 1", "threads = 1\ngateway = true")
        route = f'connect = "localhost:{gateway_port}"\ngateway = {{ ca = "{certs / "ca.pem"}" }}\n'
        route += "streams = 32\n" if carrier == "grpc" else ""
        pair.edit("weather/party.toml", f'connect = "localhost:{pair.port}"', route)
        guest, host = pair.run()
    assert (guest.code, host.code) == (0, 0), guest.err + host.err
    assert "for its gateway" in guest.out and "airline=GATEWAY:PORT" in guest.out


def test_a_wrong_certificate_is_refused(pair: Pair, keys: Path) -> None:
    # A certificate with the right name from another authority.
    (pair.folder / "airline" / "certs").unlink()
    (pair.folder / "airline" / "certs").symlink_to(keys / "stranger" / "certs")
    pair.edit("weather/party.toml", "../airline/certs/ca.pem", str(keys / "airline/certs/ca.pem"))
    guest = pair.start("airline")
    host = ended(pair.start("weather"))
    assert host.code == 6
    assert "CertificateError" in host.err and "airline" in host.err
    assert guest.poll() is None, "it still waits for an acceptable peer"
    guest.kill()
    guest.communicate(timeout=DEADLINE_S)


def test_a_peer_that_never_comes_ends_the_wait(pair: Pair) -> None:
    pair.edit("airline/party.toml", "connect_s = 600", "connect_s = 0.5")
    guest = ended(pair.start("airline"))
    assert guest.code == 11
    assert "PeerLost" in guest.err and "0.5 s (connect_s)" in " ".join(guest.err.split())


def test_contracts_that_differ_are_refused_by_field_at_both_parties(pair: Pair) -> None:
    other = (pair.folder / "job.toml").read_text().replace("batch_size = 64", "batch_size = 32")
    (pair.folder / "other.toml").write_text(other)
    guest, host = pair.run(host_job="other.toml")
    assert (guest.code, host.code) == (7, 7)
    for side in (guest, host):
        assert "batch_size: " in side.err and "ContractMismatch" in side.err


def test_a_wrong_shape_stops_both_parties_with_its_name(pair: Pair) -> None:
    (pair.folder / "weather" / "narrow.py").write_text(
        "import torch\n\nclass Narrow(torch.nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(2, 5)\n\n"
        "    def forward(self, numbers):\n        return super().forward(numbers)\n"
    )
    bottom = '{ use = "wdl", embedding_dim = 4, hidden = [8] }'
    pair.edit("weather/party.toml", bottom, '"narrow:Narrow"')
    guest, host = pair.run()
    assert host.code == 5
    assert "ModelError" in host.err and "[64, 8]" in host.err and "[64, 5]" in host.err
    assert guest.code == 12
    assert "weather stopped: ModelError" in guest.err


def test_an_exception_in_a_module_ends_its_party_with_its_line_and_the_peer_reads_the_class(
    pair: Pair,
) -> None:
    (pair.folder / "weather" / "raising.py").write_text(
        "import torch\n\nclass Raising(torch.nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(3, 8)\n\n"
        "    def forward(self, numbers):\n        return super().forward(numbers)\n"
    )
    bottom = '{ use = "wdl", embedding_dim = 4, hidden = [8] }'
    pair.edit("weather/party.toml", bottom, '"raising:Raising"')
    guest, host = pair.run()
    assert host.code == 5
    assert "raising.Raising, raised RuntimeError" in host.err
    assert "it got numbers [64, 2] float32" in host.err
    assert "raising.py, line 8, in forward" in host.err
    assert guest.code == 12
    assert "weather stopped: ModelError" in guest.err and "raising" not in guest.err


def test_nan_stops_both_parties_with_the_round(pair: Pair) -> None:
    (pair.folder / "weather" / "broken.py").write_text(
        "import torch\n"
        "class Broken(torch.nn.Module):\n"
        "    def __init__(self, z_width: int):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(2, z_width)\n"
        "        self.calls = 0\n"
        "    def forward(self, numbers):\n"
        "        self.calls += 1\n"
        "        return self.layer(numbers) / (0.0 if self.calls == 4 else 1.0)\n"
    )
    path = pair.folder / "weather" / "party.toml"
    text = re.sub(r"bottom = .*", 'bottom = "broken:Broken"', path.read_text())
    path.write_text(text)
    guest, host = pair.run()
    assert (guest.code, host.code) == (12, 10)
    assert "NonFiniteError" in host.err and "round 3" in host.err
    assert "round 3" in guest.err


@pytest.fixture
def training(pair: Pair) -> Iterator[tuple[CeluProcess, CeluProcess]]:
    """A pair in the middle of a run that would take days."""
    pair.edit("job.toml", "rounds = 60", "rounds = 1000000")
    pair.edit("job.toml", "every = 20", "every = 1000000")
    settings = pair.folder / "airline" / "party.toml"
    # A short outage; rare heartbeats, so that no peer counts as silent on a busy machine.
    settings.write_text("outage_s = 1\nheartbeat_s = 600\n" + settings.read_text())
    guest, host = pair.start("airline"), pair.start("weather")
    events = pair.folder / "airline" / "run"
    deadline = time.monotonic() + DEADLINE_S
    while not any(e["event"] == "round" for e in read_events(events)):
        assert time.monotonic() < deadline and guest.poll() is None
        time.sleep(0.05)
    yield guest, host
    for process in (guest, host):
        process.kill()
        process.communicate(timeout=DEADLINE_S)


Parties = tuple[CeluProcess, CeluProcess]


def test_a_peer_that_dies_is_noticed(training: Parties) -> None:
    guest, host = training
    host.kill()
    stopped = ended(guest)
    assert stopped.code == 11
    assert "PeerLost" in stopped.err and "weather" in stopped.err


def test_an_interrupt_stops_both_parties_with_a_message(training: Parties) -> None:
    guest, host = training
    guest.send_signal(signal.SIGINT)
    assert guest.stdout is not None
    printed = ""
    while "at the next checkpoint" not in " ".join(printed.split()):
        line = guest.stdout.readline()
        assert line, f"the guest ended at the first interrupt: {printed}"
        printed += line
    guest.send_signal(signal.SIGINT)  # no checkpoint is due for days
    assert ended(guest).code == 130
    other = ended(host)
    assert other.code == 12
    assert "airline stopped: interrupted by its operator" in " ".join(other.err.split())


@pytest.mark.parametrize(
    ("file", "old", "new", "code", "expected"),
    [
        (
            "job.toml",
            "batch_size = 64",
            'batch_size = "many"',
            3,
            "batch_size: expected a valid int",
        ),
        ("job.toml", "batch_size = 64", "batch_size = 4096", 4, "at least one batch of 4096"),
        ("airline/party.toml", 'name = "airline"', 'name = "bank"', 3, "name: expected one of"),
        (
            "airline/party.toml",
            "[model]",
            'inputs.x = ["z"]\n[model]',
            4,
            "features of the store (a, b), got 'z'",
        ),
        ("airline/party.toml", 'loss = "binary"', 'loss = "sum"', 3, "model.loss: expected one of"),
        ("airline/party.toml", 'store = "store', 'store = "absent', 4, "absent/schema.json"),
        (
            "airline/party.toml",
            "threads = 1",
            'threads = 1\ndevice = "tpu"',
            3,
            "device 'tpu' is not",
        ),
        ("airline/party.toml", "airline.pem", "nobody.pem", 6, "nobody.pem"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    pair: Pair, file: str, old: str, new: str, code: int, expected: str
) -> None:
    pair.edit(file, old, new)
    guest = ended(pair.start("airline"))
    assert guest.code == code, guest.err
    assert expected in " ".join(guest.err.split())
    assert "Traceback" not in guest.err


def test_a_run_folder_is_never_overwritten(pair: Pair) -> None:
    run = pair.folder / "airline" / "run"
    run.mkdir()
    (run / "events.jsonl").write_text("precious\n")
    guest = ended(pair.start("airline"))
    assert guest.code == 3 and "--out" in guest.err
    assert (run / "events.jsonl").read_text() == "precious\n"

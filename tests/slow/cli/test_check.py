"""`celu check`: what can be found before the peers meet, with the exit codes of `celu run`."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import numpy as np
import pytest

from celu.config.job import read_job
from celu.config.party import read_party
from celu.launch import checking
from cli.pair import Pair, celu, pair_at
from stores import write_store


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    return pair_at(tmp_path, keys)


def check(pair: Pair, name: str, *more: str) -> tuple[int, str]:
    done = celu(
        "check", pair.folder / name / "party.toml", "--job", pair.folder / "job.toml", *more
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def run(pair: Pair, name: str) -> tuple[int, str]:
    """`celu run` of the same files, with no peer there."""
    done = celu("run", pair.folder / name / "party.toml", "--job", pair.folder / "job.toml")
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("name", ["airline", "weather"])
def test_each_party_is_checked_alone_and_leaves_no_run_behind(pair: Pair, name: str) -> None:
    code, text = check(pair, name)
    assert code == 0, text
    for topic in ("settings", "security", "certificate", "network", "rows", "model", "memory"):
        assert f"ok {topic}:" in text, (topic, text)
    assert "1,024 to train on, 1,024 held out, 16 batches an epoch" in text
    assert ("loss 0.6" in text and "metrics: loss, auc" in text) == (name == "airline")
    assert "workset table" in text and "messages in flight" in text
    assert f"{name}: ready; next: celu doctor" in text
    assert not (pair.folder / name / "run").exists()


def test_a_party_that_is_not_aligned_yet_is_checked_on_all_rows_of_its_store(pair: Pair) -> None:
    pair.edit("airline/party.toml", "aligned = true", 'alignment = "none-yet" #')
    code, text = check(pair, "airline")
    assert code == 0, text
    assert "warn rows: 1,024 to train on" in text and "none-yet does not exist" in text
    assert "Run celu align at all parties" in text
    assert text.endswith(
        "airline: align first: celu align, together with weather; then check again"
    )


@pytest.mark.parametrize("key", ["airline.key", "ca.key"])
def test_an_authority_in_place_of_the_own_certificate_is_named_with_the_file_to_use(
    pair: Pair, key: str
) -> None:
    pair.edit("airline/party.toml", "certs/airline.pem", "certs/ca.pem")
    pair.edit("airline/party.toml", "certs/airline.key", f"certs/{key}")
    code, text = check(pair, "airline")
    assert code == 6, text
    assert "got that of an authority (CA)" in text
    assert re.search(r"set keys.certificate to \S+/certs/airline.pem and keys.key to", text), text
    assert run(pair, "airline") == (code, text[text.index("CertificateError") :])


def test_a_partys_certificate_in_place_of_a_peers_authority_is_named(pair: Pair) -> None:
    pair.edit("airline/party.toml", "weather/certs/ca.pem", "weather/certs/weather.pem")
    code, text = check(pair, "airline")
    assert code == 6 and "expected the authority (CA) of weather" in text
    assert "ask weather for its ca.pem" in text


def test_our_own_authority_in_place_of_a_peers_is_a_warning(pair: Pair) -> None:
    pair.edit("airline/party.toml", "../weather/certs/ca.pem", "certs/ca.pem")
    code, text = check(pair, "airline")
    assert code == 0, text
    assert "peers.weather.ca is the authority that signed our own certificate" in text


def test_a_certificate_for_another_name_is_refused_as_by_a_run(pair: Pair, keys: Path) -> None:
    pair.edit("airline/party.toml", '"certs/airline.', f'"{keys}/weather/certs/weather.')
    code, text = check(pair, "airline")
    assert code == 6 and "expected a certificate for 'airline'" in text and "'weather'" in text
    assert run(pair, "airline")[0] == 6


def test_a_port_in_use_is_an_error(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", pair.port)):
        code, text = check(pair, "airline")
    assert code == 3 and f"free port, got 127.0.0.1:{pair.port}" in text


def test_rows_that_the_gate_refuses_end_the_check_as_they_end_a_run(pair: Pair) -> None:
    x = np.linspace(0, 1, 256, dtype=np.float32)
    table = {"a": np.where(x > 0.5, np.nan, x), "b": x, "label": (x > 0.3).astype(np.float32)}
    write_store(pair.folder / "airline" / "nan", table)
    pair.edit("airline/party.toml", 'store = "store"', 'store = "nan"')
    code, text = check(pair, "airline")
    assert code == 4 and "column 'a': expected finite numbers" in text
    assert run(pair, "airline")[0] == 4


def test_labels_that_do_not_fit_the_loss_end_the_check_as_they_end_a_run(pair: Pair) -> None:
    x = np.linspace(0, 1, 256, dtype=np.float32)
    table = {"a": x, "b": x, "label": (np.arange(256) % 3).astype(np.float32)}
    write_store(pair.folder / "airline" / "three", table)
    pair.edit("airline/party.toml", 'store = "store"', 'store = "three"')
    code, text = check(pair, "airline")
    assert code == 4 and "three: column 'label': the labels: expected two classes" in text
    assert run(pair, "airline")[0] == 4


def settings_before(pair: Pair, name: str, settings: str) -> None:
    """Add settings at the start of a party.toml."""
    path = pair.folder / name / "party.toml"
    path.write_text(settings + path.read_text())


def test_more_slices_than_a_batch_has_rows_end_the_check_as_they_end_a_run(pair: Pair) -> None:
    settings_before(pair, "weather", "slices = 100\n")
    code, text = check(pair, "weather")
    assert code == 3 and "slices: expected at most batch_size, 64, got 100" in text
    assert run(pair, "weather")[0] == code


def test_several_slices_are_checked_and_an_audit_of_them_is_refused(pair: Pair) -> None:
    settings_before(pair, "airline", "slices = 3\n")
    assert check(pair, "airline")[0] == 0
    path = pair.folder / "airline" / "party.toml"
    path.write_text(path.read_text() + "\n[audit]\n")
    code, text = check(pair, "airline")
    assert code == 3 and "[audit]: expected one process with slices = 1" in text
    assert run(pair, "airline")[0] == code


def test_a_damaged_key_of_an_audit_is_found(pair: Pair) -> None:
    path = pair.folder / "airline" / "party.toml"
    path.write_text(path.read_text() + "\n[audit]\n")
    assert check(pair, "airline")[0] == 0
    folder = pair.folder / "airline" / "run"
    assert not folder.exists()
    folder.mkdir()
    (folder / "audit.key").write_text("abc\n")
    code, text = check(pair, "airline")
    assert code == 14 and "audit.key: expected a key as celu writes it" in text
    assert run(pair, "airline")[0] == code


@pytest.mark.parametrize(
    ("file", "section"),
    [
        ("label.key", "\n[privacy]\nlabel_epsilon = 2.0\n"),
        ("noise.key", "\n[privacy]\ndz_noise = { name = 'marvell', power = 0.5 }\n"),
    ],
)
def test_a_damaged_secret_key_is_found(pair: Pair, file: str, section: str) -> None:
    path = pair.folder / "job.toml"
    path.write_text(path.read_text() + section)
    key = pair.folder / "airline" / file
    key.write_text("no digits")
    key.chmod(0o600)
    code, text = check(pair, "airline")
    assert code == 3 and f"{file}: expected a key as hexadecimal digits" in text, text
    assert run(pair, "airline")[0] == code


def test_a_folder_that_a_run_would_not_overwrite_is_found(pair: Pair) -> None:
    folder = pair.folder / "airline" / "run"
    folder.mkdir()
    (folder / "events.jsonl").write_text("precious\n")
    code, text = check(pair, "airline")
    assert code == 3 and "a run that cannot be resumed; choose another folder" in text
    assert (folder / "events.jsonl").read_text() == "precious\n"
    assert run(pair, "airline")[0] == code


def test_tables_to_shard_that_the_model_does_not_have_are_a_warning(pair: Pair) -> None:
    pair.edit("weather/party.toml", "[model]", "[model]\nshard = true")
    code, text = check(pair, "weather")
    assert code == 0 and "warn model: model.shard: expected embedding tables" in text, text
    assert "A run with several ranks refuses it" in text


def test_a_host_name_without_an_address_is_a_warning(pair: Pair) -> None:
    code, text = check(pair, "weather", "--connect", "airline=nowhere.invalid:7443")
    assert code == 0, text
    assert "warn network: peers.airline.connect: nowhere.invalid has no address here" in text
    assert "a run can start; see the warning above" in text


def test_a_run_that_needs_more_memory_than_there_is_is_a_warning(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, party = pair.folder / "job.toml", pair.folder / "airline" / "party.toml"
    monkeypatch.setattr(checking, "available_bytes", lambda: 10_000)
    *_, memory = checking.check_party(read_party(party), read_job(job), party.parent)
    assert (memory.topic, memory.level) == ("memory", "warn")
    assert memory.message.endswith("0.0 MB are available")
    assert "Choose a smaller batch_size" in memory.fix


def test_fewer_rows_than_a_batch_are_an_error(pair: Pair) -> None:
    pair.edit("job.toml", "batch_size = 64", "batch_size = 2048")
    code, text = check(pair, "weather")
    assert code == 4 and "expected at least one batch of 2048 training rows, got 1024" in text
    run_code, run_text = run(pair, "weather")  # which waits for no peer
    assert run_code == code and run_text.endswith(text[text.index("DataError") :])


def test_a_store_without_test_rows_ends_the_check_as_it_ends_a_run(pair: Pair) -> None:
    table = {name: np.linspace(0, 1, 256, dtype=np.float32) for name in ("c", "d")}
    none = {name: values[:0] for name, values in table.items()}
    write_store(pair.folder / "weather" / "all", table, test=none)
    pair.edit("weather/party.toml", 'store = "store"', 'store = "all"')
    code, text = check(pair, "weather")
    assert code == 4 and "weather: expected at least one test row, got none" in text
    assert "set split.test in schema.toml above 0" in text
    run_code, run_text = run(pair, "weather")  # which waits for no peer
    assert run_code == code and run_text.endswith(text[text.index("DataError") :])


@pytest.mark.parametrize("run_dir", ["party.toml", "party.toml/run"])
def test_a_run_folder_that_cannot_be_written_ends_the_check_as_it_ends_a_run(
    pair: Pair, run_dir: str
) -> None:
    pair.edit("weather/party.toml", 'run_dir = "run"', f'run_dir = "{run_dir}"')
    code, text = check(pair, "weather")
    assert code == 14 and f"weather/{run_dir}: cannot be written" in text, text
    assert text.endswith("it is a file, or in one; name a folder in run_dir or --out")
    run_code, run_text = run(pair, "weather")
    assert run_code == code and run_text.endswith(text[text.index("CheckpointError") :])


def test_features_that_no_bottom_takes_are_a_warning(pair: Pair) -> None:
    path = pair.folder / "airline" / "party.toml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("bottom")))
    code, text = check(pair, "airline")
    assert code == 0, text
    assert (
        "warn rows: " in text and "airline/store: its columns of features (2) are not used" in text
    )
    assert "add one in party.toml" in text


LAZY = """
import torch

class Bottom(torch.nn.Module):
    def __init__(self, z_width):
        super().__init__()
        self.linear = torch.nn.LazyLinear(z_width)

    def forward(self, numbers):
        return self.linear(numbers)
"""


def test_a_lazy_module_is_checked_as_it_is_trained(pair: Pair) -> None:
    (pair.folder / "weather" / "lazy_model.py").write_text(LAZY)
    built_in = '{ use = "wdl", embedding_dim = 4, hidden = [8] }'
    pair.edit("weather/party.toml", built_in, '"lazy_model:Bottom"')
    code, text = check(pair, "weather")
    assert code == 0 and "ok model: forward, backward and an update on one batch" in text, text


MODULE = """
import torch

class Bottom(torch.nn.Module):
    def __init__(self, z_width):
        super().__init__()
        self.linear = torch.nn.Linear(2, z_width)

    def forward(self, numbers):
        return self.linear({forward})
"""


@pytest.mark.parametrize(
    ("forward", "expected"),
    {
        "fails": ("numbers[:, :1]", "own_model.py, line 10, in forward"),
        "wrong width": ("numbers)[:, :3].mul(1", "must return Z of [64, 8]"),
        "no gradient": ("numbers).detach().mul(1", "got a tensor without a gradient"),
    }.values(),
)
def test_a_model_that_cannot_train_on_one_batch_is_found(
    pair: Pair, forward: str, expected: str
) -> None:
    (pair.folder / "weather" / "own_model.py").write_text(MODULE.format(forward=forward))
    pair.edit(
        "weather/party.toml",
        '{ use = "wdl", embedding_dim = 4, hidden = [8] }',
        '"own_model:Bottom"',
    )
    code, text = check(pair, "weather")
    assert code == 5 and expected in text, text


def test_a_run_folder_with_checkpoints_of_another_contract_is_found(pair: Pair) -> None:
    guest, host = pair.run()
    assert guest.code == host.code == 0, guest.err
    code, text = check(pair, "airline")
    assert code == 0 and "would resume from round 60" in text, text
    pair.edit("job.toml", "seed = 1", "seed = 2")
    code, text = check(pair, "airline")
    assert code == 14 and "seed" in text and "another --out" in text, text


def test_a_metric_that_the_run_would_never_compute_is_refused(pair: Pair) -> None:
    (pair.folder / "airline" / "my_loss.py").write_text(
        "from torch.nn import functional as F\n"
        "def loss(output, labels):\n"
        "    output = output.reshape(-1)\n"
        "    return F.binary_cross_entropy_with_logits(output, labels, reduction='none')\n"
    )
    pair.edit("airline/party.toml", '"binary"', '"my_loss:loss"')
    pair.edit("job.toml", "[evaluation]", '[evaluation]\nmetric = "accuracy"\ntarget = 0.1')
    code, text = check(pair, "airline")
    assert code == 3
    assert "expected a metric that fits the guest's loss (loss, auc, pr_auc, ks" in text
    assert "got accuracy" in text and "declare celu.Loss(..., output=...)" in text

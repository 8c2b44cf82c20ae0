"""`celu export`: what it writes, and what it refuses."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import celu
from celu.errors import CeluError, ConfigError, DataError, ModelError
from celu.serving.export import export_run
from celu.serving.model_folder import load_model, read_facts
from serving.trained import Join, Own, Task, Trained, invoke, run_from_python, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("task"), Task())


@pytest.fixture(scope="module")
def from_python(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return run_from_python(tmp_path_factory.mktemp("python"))


def copy_run(trained: Trained, party: str, folder: Path) -> Path:
    run = folder / "run"
    shutil.copytree(trained.runs[party], run)
    return run


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "task",
    [
        Task(),
        Task(bottom='"dssm"', top='"dssm"'),
        Task(
            bottom='{ use = "resnet", members = 2 }',
            top='{ use = "resnet", members = 2 }',
            job='preset = "tabular"\n',
        ),
        Task(hosts=("weather", "bank"), top='{ use = "wdl", hidden = [4] }'),
        Task(guest_has_features=False),
        Task(loss="multiclass", top='{ use = "wdl", outputs = 3 }'),
        Task(loss="regression"),
        Task(hosts=()),
        Task(job='method = "auto"\n'),
    ],
    ids=[
        "wdl",
        "dssm",
        "resnet",
        "two hosts",
        "no features",
        "multiclass",
        "regression",
        "alone",
        "auto",
    ],
)
def test_a_loaded_model_computes_the_same_bits_as_the_trained_modules(
    task: Task, tmp_path: Path
) -> None:
    trained = train(tmp_path, task)
    expected, z_of_hosts, batch = trained.outputs(32)
    for party, run in trained.runs.items():
        export_run(run, tmp_path / "models" / party)
    state = torch.get_rng_state()
    models = {name: load_model(tmp_path / "models" / name) for name in trained.runs}
    assert torch.equal(torch.get_rng_state(), state), "loading uses random numbers of its own"
    assert len({model.name for model in models.values()}) == 1
    for (name, host), z in zip(trained.hosts.items(), z_of_hosts, strict=True):
        assert torch.equal(models[name].activations(host.test.take(slice(0, 32))), z)
        models[name].check_rows(host.test, "rows")
    guest = models["airline"]
    guest.check_rows(trained.guest.test, "rows")
    assert guest.top is not None
    own = [] if guest.bottom is None else [guest.activations(batch)]
    with torch.no_grad():
        assert torch.equal(guest.top(*own, *z_of_hosts), expected)
    scores = guest.scores(batch, z_of_hosts)
    in_own_units = guest.facts.label_map.in_own_units(expected.reshape(-1))
    kinds = {"binary": expected.reshape(-1).sigmoid(), "multiclass": expected.softmax(dim=-1)}
    torch.testing.assert_close(scores, kinds.get(task.loss, in_own_units), check_dtype=False)
    fallback = {host: tuple(z.shape) for host, z in guest.fallback_z(3).items()}
    assert fallback == dict.fromkeys(task.hosts, (3, 6))


def test_the_mean_z_of_a_host_is_that_of_its_training_rows(
    trained: Trained, tmp_path: Path
) -> None:
    export_run(trained.runs["airline"], tmp_path / "model")
    host = trained.hosts["weather"]
    with torch.no_grad():
        mean = host.bottom.eval()(**host.train.take(slice(0, len(host.train))).inputs).mean(0)
    fallback = load_model(tmp_path / "model").fallback_z(2)["weather"]
    torch.testing.assert_close(fallback, torch.stack([mean, mean]))


def test_modules_from_python_are_exported_and_loaded_with_instances_of_their_classes(
    from_python: Trained, tmp_path: Path
) -> None:
    expected, (z,), batch = from_python.outputs(32)
    for party, run in from_python.runs.items():
        facts = export_run(run, tmp_path / party)
        assert facts.bottom is None and facts.top is None, "[model] was not used"
        assert facts.output == ("binary" if party == "airline" else None)
    host = load_model(tmp_path / "weather", bottom=Own())
    assert torch.equal(host.activations(from_python.hosts["weather"].test.take(slice(0, 32))), z)
    guest = load_model(tmp_path / "airline", bottom=Own(), top=Join())
    assert guest.facts.inputs == {
        "age": ["age"],
        "grid": ["grid.0", "grid.1"],
        "word": [f"word.{i}" for i in range(6)],
    }
    assert guest.top is not None
    with torch.no_grad():
        assert torch.equal(guest.top(guest.activations(batch), z), expected)
    guest.check_rows(from_python.guest.test, "rows")
    with pytest.raises(DataError, match=r"rows: expected the inputs .*grid \[2, 3\] float32"):
        guest.check_rows(celu.Dataset({"grid": torch.zeros(3, 6)}), "rows")
    with pytest.raises(ModelError, match=r"the bottom model came from Python .* as bottom"):
        load_model(tmp_path / "airline", top=Join())
    with pytest.raises(ModelError, match=r"the weights do not fit the modules: top\.bias"):
        load_model(tmp_path / "airline", bottom=Own(), top=nn.Linear(12, 1))


def test_the_command_prints_the_name_of_the_model_and_the_next_step(
    trained: Trained, from_python: Trained, tmp_path: Path
) -> None:
    name = export_run(trained.runs["airline"], tmp_path / "named").name
    for party in ("airline", "weather"):
        out = tmp_path / party
        printed = " ".join(invoke("export", trained.runs[party], "--out", out).split())
        assert f"model {name}, the part of {party}" in printed
        assert f"celu predict party.toml --serving serving.toml --model {out}" in printed
        assert ("--out scores.parquet" in printed) == (party == "airline")
    printed = invoke("export", from_python.runs["weather"], "--out", tmp_path / "python")
    assert f'celu.load_model("{tmp_path / "python"}"' in "".join(printed.splitlines())


def test_an_exported_model_is_readable_by_its_owner_only(trained: Trained, tmp_path: Path) -> None:
    export_run(trained.runs["airline"], tmp_path / "model")
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o700
    files = {
        file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "model").iterdir()
    }
    assert files == dict.fromkeys(
        ["model.json", "weights.safetensors", "schema.json", "card.md"], 0o600
    )


def test_an_existing_folder_is_replaced_only_with_force_and_if_it_is_a_model(
    trained: Trained, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    export_run(trained.runs["airline"], out)
    with pytest.raises(ConfigError, match=r"model: already exists .* use --force"):
        invoke("export", trained.runs["weather"], "--out", out)
    assert read_facts(out).party == "airline"
    invoke("export", trained.runs["weather"], "--out", out, "--force")
    assert read_facts(out).party == "weather"
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"other: already exists and has no model\.json"):
        invoke("export", trained.runs["weather"], "--out", tmp_path / "other", "--force")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("running", r"status 'running'; wait for its end, or start it again"),
        ("PeerLost", r"status 'PeerLost'"),
    ],
)
def test_a_run_that_is_not_done_is_refused(
    trained: Trained, tmp_path: Path, status: str, expected: str
) -> None:
    run = copy_run(trained, "airline", tmp_path)
    if status == "running":
        (run / "summary.json").unlink()
    else:
        edit_json(run / "summary.json", status=status)
    refused(run, tmp_path / "model", ConfigError, expected)


def refused(run: Path, out: Path, error: type[CeluError], expected: str, **more: Any) -> None:
    """An export fails, and leaves nothing behind."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(error, match=expected):
        export_run(run, out, **more)
    assert sorted(out.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("settings.json", "not a run folder"),
        ("trained.json", "expected the identity of a trained model.*train again"),
        ("weights.safetensors", "expected weights, got.*train again"),
    ],
)
def test_a_run_folder_without_a_file_is_refused(
    trained: Trained, tmp_path: Path, file: str, expected: str
) -> None:
    run = copy_run(trained, "airline", tmp_path)
    (run / file).unlink()
    refused(run, tmp_path / "model", ConfigError, expected)


def test_damaged_and_swapped_weights_of_a_run_are_refused(trained: Trained, tmp_path: Path) -> None:
    run = copy_run(trained, "airline", tmp_path)
    content = bytearray((run / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "weights.safetensors").write_bytes(content)
    refused(run, tmp_path / "model", ModelError, "not the weights of model .*train again")
    (run / "weights.safetensors").write_bytes(content[:100])
    refused(run, tmp_path / "model", ConfigError, "expected weights, got")
    shutil.copy(trained.runs["weather"] / "weights.safetensors", run)
    refused(run, tmp_path / "model", ModelError, "not the weights of model")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"output": "text"}, r"trained\.json: .*, got: output: expected .*was the file edited"),
        ({"output": None}, r"output: expected what a prediction is"),
        ({"mean_z": {"weather": [1.0]}}, r"mean_z: expected numbers of \{'weather': 6\}"),
        ({"inputs": {"words": {"shape": [2], "dtype": "int64"}}}, "the columns of input 'words'"),
        ({"inputs": {"ids": {"shape": [2], "dtype": "int64"}}}, "input_specs: expected"),
        ({"sizes": {"ids": [7, 7]}}, r"sizes\.ids: expected one for each column"),
        ({"train_rows": -1}, r"trained\.json: .*, got: train_rows: expected"),
    ],
    ids=str,
)
def test_an_edited_trained_json_is_refused(
    trained: Trained, tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    run = copy_run(trained, "airline", tmp_path)
    edit_json(run / "trained.json", **change)
    refused(run, tmp_path / "model", ConfigError, expected)


def test_more_columns_than_a_model_has_are_refused_before_they_are_named(
    trained: Trained, tmp_path: Path
) -> None:
    run = copy_run(trained, "airline", tmp_path)
    (run / "schema.json").unlink()  # as for rows that came from Python
    edit_json(run / "trained.json", inputs={"x": {"shape": [10**7], "dtype": "float32"}})
    expected = r"inputs\.x: expected at most 100,000 columns, got 10,000,000"
    refused(run, tmp_path / "model", ConfigError, expected)


def test_a_folder_that_cannot_be_written_is_an_error(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="model: cannot be written: File exists"):
        export_run(trained.runs["airline"], tmp_path / "file" / "model")


def test_an_unknown_format_is_refused_before_the_run_is_read(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="format: expected one or more of pt2, onnx, got 'tflite'"
    ):
        invoke("export", tmp_path / "none", "--out", tmp_path / "m", "--format", "pt2, tflite")


def test_a_missing_package_is_named_with_its_extra_before_anything_is_written(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # Python then finds no such module
    refused(
        trained.runs["airline"],
        tmp_path / "model",
        ConfigError,
        r'format onnx needs the package onnxscript; .*pip install "celu\[onnx\]"',
        formats=["onnx"],
    )


def test_the_help_says_that_a_pt2_file_contains_a_pickle() -> None:
    assert "contains a pickle" in " ".join(invoke("export", "--help").split())

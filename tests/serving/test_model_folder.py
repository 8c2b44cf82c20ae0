"""An exported model: what a damaged or swapped file causes, and a model's own checks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import celu
from celu.errors import CeluError, ConfigError, DataError, ModelError
from celu.serving.export import export_run
from celu.serving.model_folder import load_model, read_facts
from serving.trained import Task, Trained, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("task"), Task())


@pytest.fixture(scope="module")
def exported(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for party, run in trained.runs.items():
        export_run(run, folder / party)
    return folder


@pytest.fixture
def model(exported: Path, tmp_path: Path) -> Path:
    """A copy of the guest's part, to damage."""
    return Path(shutil.copytree(exported / "airline", tmp_path / "model"))


def edit(model: Path, *keys: str, value: Any) -> None:
    path = model / "model.json"
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "error"),
    [("model.json", ConfigError), ("weights.safetensors", ConfigError), ("schema.json", DataError)],
)
def test_a_missing_file_is_named(model: Path, file: str, error: type[CeluError]) -> None:
    (model / file).unlink()
    with pytest.raises(error, match=f"{file}: expected"):
        load_model(model)


def test_a_folder_without_a_model_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='write one with "celu export RUN --out FOLDER"'):
        load_model(tmp_path)


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_a_flipped_bit_in_the_weights_is_detected(model: Path, at: float) -> None:
    path = model / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 64
    path.write_bytes(content)
    with pytest.raises((ConfigError, ModelError), match=r"weights\.safetensors.*export the run"):
        load_model(model)


def test_the_files_of_another_part_are_refused(model: Path, exported: Path) -> None:
    shutil.copy(exported / "weather" / "weights.safetensors", model)
    with pytest.raises(ModelError, match="these are not the weights of model"):
        load_model(model)
    shutil.copy(exported / "airline" / "weights.safetensors", model)
    shutil.copy(exported / "weather" / "model.json", model)
    with pytest.raises(ModelError, match="these are not the weights of model"):
        load_model(model)


def test_the_schema_of_another_store_is_refused(model: Path, exported: Path) -> None:
    schema = json.loads((model / "schema.json").read_text())
    schema["numbers"]["a | b"]["mean"] = 0.5
    (model / "schema.json").write_text(json.dumps(schema))
    with pytest.raises(ConfigError, match=r"schema\.json: this is not the schema of model"):
        load_model(model)


@pytest.mark.parametrize(
    ("keys", "value", "expected"),
    [
        (["format"], "celu-model-2", "format: expected 'celu-model-1'"),
        (["role"], "host", "role: airline is not a host of this model"),
        (["party"], "bank", "expected digests of the weights"),
        (["identity", "weights"], {"airline": "ab" * 32}, "expected digests of the weights of"),
        (["identity", "run"], "x", r"identity\.run: "),
        (["output"], None, "output: expected what a prediction is"),
        (["mean_z"], {}, "mean_z: expected numbers of"),
        (["mean_z", "weather"], [1.0], "mean_z: expected numbers of"),
        (["z_width"], None, "bottom: expected none without inputs and z_width"),
        (["z_width"], 0, "z_width: "),
        (["inputs", "ids"], ["a", "b"], "input_specs: expected the inputs"),
        (
            ["input_specs", "ids", "shape"],
            [1, 2**40],
            "expected rows of at most 16,777,216 numbers",
        ),
        (["sizes", "ids"], [7, 7], r"sizes\.ids: expected one for each column"),
        (["surprise"], 1, "surprise: expected no such key"),
    ],
    ids=str,
)
def test_a_model_json_that_contradicts_itself_is_refused(
    model: Path, keys: list[str], value: Any, expected: str
) -> None:
    edit(model, *keys, value=value)
    with pytest.raises(ConfigError, match=expected):
        read_facts(model)


def test_a_host_holds_no_top_and_no_mean_z(exported: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(exported / "weather", tmp_path / "host"))
    edit(model, "mean_z", value={"weather": [0.0] * 6})
    with pytest.raises(ConfigError, match="they belong to the guest"):
        read_facts(model)
    edit(model, "mean_z", value={})
    edit(model, "z_width", value=7)
    with pytest.raises(ConfigError, match="z_width: expected 6"):
        read_facts(model)


def test_text_that_is_no_json_and_a_file_that_is_too_large_are_refused(model: Path) -> None:
    (model / "model.json").write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match=r"model\.json: expected an exported model"):
        read_facts(model)
    with (model / "model.json").open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    with pytest.raises(ConfigError, match="expected an exported model of at most"):
        read_facts(model)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["sizes", "ids"], [2**40]),
        (["sizes", "ids"], [2**62]),
        (["z_width"], 2**40),
        (["bottom", "hidden"], [2**40]),
        (["bottom", "embedding_dim"], 2**62),
        (["bottom", "hidden"], ["wide"]),
        (["top"], {"use": "wdl", "outputs": 2**40}),
    ],
    ids=str,
)
def test_modules_too_large_for_the_weights_are_refused_before_they_use_memory(
    model: Path, keys: list[str], value: Any
) -> None:
    edit(model, *keys, value=value)
    with pytest.raises((ModelError, ConfigError), match=r"do not fit|cannot be built|wdl"):
        load_model(model)


def test_an_unknown_module_or_device_is_named(model: Path) -> None:
    with pytest.raises(ConfigError, match="device 'warp' is not available"):
        load_model(model, device="warp")
    edit(model, "bottom", value={"use": "nowhere:Net"})
    with pytest.raises(ConfigError, match="cannot import 'nowhere:Net'"):
        load_model(model)


def test_rows_of_other_inputs_or_codes_are_refused(exported: Path, trained: Trained) -> None:
    loaded = load_model(exported / "airline")
    rows = trained.guest.test
    numbers, ids = rows.inputs["numbers"], rows.inputs["ids"]
    for inputs in (
        {"numbers": numbers},
        {"numbers": numbers[:, :3], "ids": ids},
        {"numbers": numbers, "ids": ids.float()},
    ):
        with pytest.raises(DataError, match=r"new rows: expected the inputs of model .*ids \[1\]"):
            loaded.check_rows(celu.Dataset(inputs), "new rows")
    other = celu.Dataset({"ids": ids, "numbers": numbers}, sizes={"ids": (8,)})
    with pytest.raises(DataError, match=r"encode the rows with .celu prepare --like STORE"):
        loaded.check_rows(other, "new rows")


def test_a_party_computes_only_what_it_holds(exported: Path, trained: Trained) -> None:
    guest, host = load_model(exported / "airline"), load_model(exported / "weather")
    batch = trained.guest.test.take(slice(0, 4))
    with pytest.raises(ModelError, match=r"weather: model .* has no top model here"):
        host.scores(batch, [])
    with pytest.raises(ModelError, match="airline: expected the guest's own rows, got none"):
        guest.scores(None, [torch.zeros(4, 6)])
    for zs in ([], [torch.zeros(4, 5)], [torch.zeros(3, 6)], [torch.zeros(4, 6)] * 2):
        with pytest.raises(ModelError, match=r"expected Z of weather with shapes \[\[4, 6\]\]"):
            guest.scores(batch, zs)

"""Exported modules in other runtimes: ONNX Runtime and `torch.export`."""

from __future__ import annotations

import stat
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from celu.errors import ConfigError, ModelError
from celu.serving.export import export_run
from celu.serving.model import Model
from celu.serving.model_folder import load_model
from cli.pair import celu
from serving.trained import Join, Own, Task, Trained, run_from_python, train, write_task

TOLERANCE = 1e-5
OWN_MODULES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, z_width, columns):
        super().__init__()
        self.layer = nn.Linear(columns["numbers"], z_width)

    def forward(self, numbers, ids):
        z = torch.tanh(self.layer(numbers))
        return z if ids.sum() >= 0 else -z

class Plain(Net):
    def forward(self, numbers, ids):
        return torch.tanh(self.layer(numbers)) + ids

class Fixed(Net):
    def forward(self, numbers, ids):
        return self.layer(numbers).reshape(int(numbers.shape[0]), -1)

class Other(Net):
    def forward(self, numbers, ids):
        return self.layer(numbers) * (2 if torch.compiler.is_compiling() else 1)

def cubic(output, labels):
    return (output.reshape(-1) - labels).abs() ** 3
"""


def own_task(name: str, loss: str = "own_modules:cubic") -> Task:
    return Task(bottom=f'"own_modules:{name}"', loss=loss, files={"own_modules.py": OWN_MODULES})


def in_onnx_runtime(path: Path, inputs: dict[str, Tensor]) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == list(inputs)
    assert all(i.shape[0] == "batch" for i in session.get_inputs())
    (output,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return torch.from_numpy(output)


def assert_runtimes_agree(folder: Path, model: Model, trained: Trained, rows: int) -> None:
    """Each exported module of a party computes what the loaded module does."""
    party = model.facts.party
    dataset = trained.guest.test if party == "airline" else trained.hosts[party].test
    batch = dataset.take(slice(0, rows))
    own = []
    if model.bottom is not None:
        z = model.activations(batch)
        own = [z]
        inputs = {name: batch.inputs[name] for name in model.facts.inputs}
        got = in_onnx_runtime(folder / "bottom.onnx", inputs)
        torch.testing.assert_close(got, z, rtol=0, atol=TOLERANCE)
        program = torch.export.load(folder / "bottom.pt2")
        assert torch.equal(program.module()(**inputs), z)
    if model.top is not None:
        zs = [*own, *trained.outputs(rows)[1]]
        with torch.no_grad():
            expected = model.facts.label_map.in_own_units(model.top(*zs)).float()
        names = ["z_airline", *(f"z_{host}" for host in model.facts.hosts)][-len(zs) :]
        got = in_onnx_runtime(folder / "top.onnx", dict(zip(names, zs, strict=True)))
        torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)
        program = torch.export.load(folder / "top.pt2")
        torch.testing.assert_close(program.module()(*zs), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export.load
@pytest.mark.parametrize(
    "task",
    [
        Task(),
        Task(bottom='{ use = "dssm", embedding_dim = 4, hidden = [5, 4] }', top='"dssm"'),
        Task(bottom='"dssm"', top='"dssm"', hosts=("weather", "my-bank")),
        Task(
            hosts=("weather", "bank"),
            top='{ use = "wdl", hidden = [4], outputs = 3 }',
            loss="multiclass",
        ),
        Task(bottom='{ use = "resnet", members = 3 }', top='{ use = "resnet", members = 3 }'),
        Task(
            hosts=("weather", "bank"),
            bottom='{ use = "resnet", members = 2 }',
            top='{ use = "resnet", outputs = 3, members = 2 }',
            loss="multiclass",
        ),
        Task(guest_has_features=False),
        Task(hosts=()),
        Task(loss="regression"),
        Task(
            data='inputs = { z = ["a | b"], val_0 = ["`c`"], relu = ["codes"], module = ["`c`"] }\n'
        ),
    ],
    ids=[
        "wdl",
        "dssm",
        "dssm with two hosts",
        "wdl with two hosts",
        "resnet",
        "resnet with two hosts",
        "no features",
        "alone",
        "in the units of the label",
        "names",
    ],
)
def test_onnx_runtime_and_torch_export_compute_what_pytorch_does(
    task: Task, tmp_path: Path
) -> None:
    trained = train(tmp_path, task)
    for party, run in trained.runs.items():
        folder = tmp_path / "models" / party
        export_run(run, folder, formats=["onnx", "pt2"])
        model = load_model(folder)
        for rows in (1, 7):
            assert_runtimes_agree(folder, model, trained, rows)
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            content = file.read_bytes()
            assert b"/tower.py" not in content, f"{file.name} names files of this machine"
        card = (folder / "card.md").read_text()
        assert "bottom.pt2" in card or model.bottom is None
        assert "contains a pickle" in card
        for path in folder.glob("*.onnx"):
            onnx.checker.check_model(path, full_check=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_modules_from_python_are_exported_with_instances_of_their_classes(tmp_path: Path) -> None:
    trained = run_from_python(tmp_path)
    folder = tmp_path / "model"
    run = trained.runs["airline"]
    with pytest.raises(ModelError, match="the bottom model came from Python"):
        export_run(run, folder, formats=["onnx"])
    assert not folder.exists()
    export_run(run, folder, formats=["pt2", "onnx"], bottom=Own(), top=Join())
    model = load_model(folder, bottom=Own(), top=Join())
    for rows in (1, 7):
        assert_runtimes_agree(folder, model, trained, rows)


def test_the_command_finds_your_own_modules_in_the_current_folder_and_in_modules(
    tmp_path: Path,
) -> None:
    done = celu(*write_task(tmp_path, own_task("Plain")), "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    run, out = tmp_path / "run", tmp_path / "model"
    done = celu("export", run, "--out", out)
    assert done.returncode == 0, "without --format no module is imported\n" + done.stderr
    done = celu("export", run, "--out", out, "--force", "--format", "pt2,onnx")
    assert done.returncode == ConfigError.exit_code
    assert "cannot import 'own_modules:Plain'" in " ".join(done.stderr.split())
    assert not (out / "bottom.pt2").exists() and (out / "model.json").exists()
    modules = tmp_path / "airline"
    for arguments, cwd in (
        ((), modules),
        (("--modules", modules), tmp_path),
        (("--modules", "airline"), tmp_path),
    ):
        done = celu(
            "export", run, "--out", out, "--force", "--format", "pt2,onnx", *arguments, cwd=cwd
        )
        assert done.returncode == 0, done.stderr
        assert (out / "bottom.onnx").exists() and (out / "top.pt2").exists()
        assert done.stderr == "", "nothing of torch's own reports"
    facts = load_model(out, modules=modules).facts
    assert facts.output == "regression", "what a loss of your own predicts, unless it says more"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Net", "data-dependent"), ("Fixed", "batch"), ("Other", "returns other values")],
)
def test_a_module_that_cannot_be_exported_is_an_error_and_nothing_is_written(
    tmp_path: Path, name: str, reason: str
) -> None:
    done = celu(*write_task(tmp_path, own_task(name, "binary")), "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "models"
    folder.mkdir()
    modules = ("--modules", tmp_path / "airline")
    for format_ in ("pt2", "onnx"):
        done = celu(
            "export", tmp_path / "run", "--out", folder / "7", "--format", format_, *modules
        )
        said = " ".join(done.stderr.split())
        assert done.returncode == ModelError.exit_code, said
        assert "airline: the bottom model cannot be exported" in said and reason in said
        assert "Traceback" not in said and "def forward" not in said
        assert list(folder.iterdir()) == []
    done = celu("export", tmp_path / "run", "--out", folder / "7")
    assert done.returncode == 0, done.stderr

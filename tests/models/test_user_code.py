"""An exception in a user's module, loss or metric is a ModelError that says where."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import celu
from celu.errors import ConfigError, ModelError
from celu.models.building import build_bottom
from celu.serving.runtimes import write_modules
from federation import Federation, federation


class Failing(nn.Module):
    """Calls a module, and fails from the n-th call on."""

    def __init__(self, module: nn.Module, calls: int = 0, mode: str = "any") -> None:
        super().__init__()
        self.module, self.calls, self.mode = module, calls, mode

    def forward(self, *zs: Tensor, **inputs: Tensor) -> Tensor:
        if self.mode in ("any", "train" if self.training else "eval"):
            self.calls -= 1
            if self.calls < 0:
                raise ValueError("three is too many")
        output: Tensor = self.module(*zs, **inputs)
        return output


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise ValueError("no way back")


def fail_backward(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, args, output: _Backward.apply(output))
    return module


def failing_loss(output: Tensor, labels: Tensor) -> Tensor:
    raise KeyError("weights")


@celu.metric(higher_is_better=True)
def failing_metric(scores: Any, labels: Any) -> float:
    return 1 / 0


def with_top(fed: Federation, make: Callable[[nn.Module], nn.Module]) -> None:
    fed.guest = replace(fed.guest, top=make(fed.guest.top))


def with_bottom(fed: Federation, make: Callable[[nn.Module], nn.Module]) -> None:
    assert fed.guest.bottom is not None
    fed.guest = replace(fed.guest, bottom=make(fed.guest.bottom))


def with_host(fed: Federation, make: Callable[[nn.Module], nn.Module]) -> None:
    fed.hosts["host"] = replace(fed.hosts["host"], bottom=make(fed.hosts["host"].bottom))


LINE = r"test_user_code.py, line \d+, in forward: raise ValueError"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: with_top(f, Failing), rf"guest: the top model, .*Failing, raised ValueError: "
         rf"three is too many\n  it got \[32, 5\] float32, \[32, 6\] float32\n(.*\n)*  {LINE}"),
        (lambda f: with_bottom(f, Failing), rf"guest: the bottom model, .*Failing, raised (.*\n)*"
         rf"  it got numbers \[32, 4\] float32, ids \[32, 3\] int64\n(.*\n)*  {LINE}"),
        (lambda f: with_host(f, Failing), rf"host: the bottom model, .*Failing, (.*\n)*  {LINE}"),
        (lambda f: with_host(f, lambda m: Failing(m, 4, "train")), "host: the bottom model"),
        (lambda f: with_top(f, lambda m: Failing(m, 4, "train")), "guest: the top model"),
        (lambda f: with_top(f, lambda m: Failing(m, 0, "eval")), "guest: the top model"),
        (lambda f: with_host(f, lambda m: Failing(m, 0, "eval")), "host: the bottom model"),
        (lambda f: with_top(f, fail_backward), "guest: the backward pass of .*no way back"),
        (lambda f: with_host(f, fail_backward), "host: the backward pass of .*no way back"),
        (lambda f: setattr(f, "guest", replace(f.guest, loss=failing_loss)),
         r"guest: the loss, .*failing_loss, raised KeyError(.*\n)*  it got output \[32, 1\] float32"
         r", labels \[32\] float32\n(.*\n)*  .*in failing_loss"),
        (lambda f: setattr(f, "guest", replace(f.guest, metrics=[failing_metric])),
         r"metric 'failing_metric' failed for scores \[192\] and labels \[192\], ZeroDivisionError"
         r"(.*\n)*  test_user_code.py, line \d+, in failing_metric: return 1 / 0"),
    ],
    ids=["top", "bottom", "host", "host's local step", "local step", "evaluation",
         "host's evaluation", "backward", "host's backward", "loss", "metrics"],
)  # fmt: skip
def test_an_exception_in_training_is_a_model_error_with_shapes_and_lines(
    change: Callable[[Federation], None], message: str
) -> None:
    fed = federation(method=celu.Method(R=3, W=3))
    change(fed)
    with pytest.raises(ModelError, match=message) as caught:
        celu.simulate(fed.job, fed.guest, fed.hosts)
    assert caught.value.exit_code == 5
    assert caught.value.public() == "ModelError"  # what the peers read


def test_an_exception_in_a_prediction_is_a_model_error() -> None:
    fed = federation(rounds=2)
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    models = celu.models_of(result, fed.job, fed.guest, fed.hosts)
    hosts = {"host": (models["host"], fed.hosts["host"].test)}
    assert models["guest"].top is not None and models["host"].bottom is not None
    failing = replace(models["guest"], top=Failing(models["guest"].top))
    with pytest.raises(ModelError, match=r"guest: the top model, .*Failing, raised ValueError"):
        celu.predict(failing, fed.guest.test, hosts)
    broken = replace(models["host"], bottom=Failing(models["host"].bottom))
    with pytest.raises(ModelError, match=r"host: the bottom model, .*Failing, raised ValueError"):
        celu.predict(models["guest"], fed.guest.test, {"host": (broken, fed.hosts["host"].test)})


def test_an_exception_in_an_export_names_the_module_and_its_line(tmp_path: Path) -> None:
    fed = federation(rounds=2)
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    model = celu.models_of(result, fed.job, fed.guest, fed.hosts)["host"]
    assert model.bottom is not None
    failing = replace(model, bottom=Failing(model.bottom).eval())
    message = rf"cannot be exported: ValueError: three is .*\n  it is .*Failing\n(.*\n)*  {LINE}"
    with pytest.raises(ModelError, match=message):
        write_modules(failing, tmp_path, ["pt2"])


class Changed(nn.Module):
    """A module whose output is changed by a function."""

    def __init__(self, module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.change = module, change

    def forward(self, *zs: Tensor, **inputs: Tensor) -> Tensor:
        return self.change(self.module(*zs, **inputs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: with_host(f, lambda m: Changed(m, Tensor.double)), "host: the bottom model, "
         r".*Changed, must return Z in float32, got float64; end its forward with \.float\(\)"),
        (lambda f: with_host(f, lambda m: Changed(m, lambda z: z[:, :3])), "host: the bottom model,"
         r" .*Changed, must return Z of \[32, 6\] .*, got \[32, 3\]; it got numbers \[32, 4\] f"),
        (lambda f: with_top(f, lambda m: Changed(m, lambda z: z[:3])),
         r"guest: the top model, .*Changed, must return one value per row, \[32\]"),
        (lambda f: setattr(f, "guest", replace(f.guest, loss=lambda o, y: (o[:, 0] > y).long())),
         "guest: the loss, .*lambda.*, must return floating-point numbers, .* got int64"),
        (lambda f: setattr(f, "guest", replace(f.guest, loss=lambda o, y: o[:, 0] > y)),
         "guest: the loss, .*lambda.*, must return floating-point numbers, .* got bool"),
        (lambda f: setattr(f, "guest", replace(f.guest, loss=lambda o, y: (o - y).mean())),
         r"guest: the loss, .* one value per instance, \[32\], got \[\]; it got output \[32, 1\]"),
        (lambda f: with_host(f, lambda m: Changed(m, lambda z: sys.exit(0))),
         r"host: the bottom model, .*Changed, raised SystemExit: 0\n"),
    ],
    ids=["float64", "width", "rows", "long", "bool", "mean", "exit"],
)  # fmt: skip
def test_an_output_that_cannot_be_used_is_named_with_its_module(
    change: Callable[[Federation], None], message: str
) -> None:
    fed = federation()
    change(fed)
    with pytest.raises(ModelError, match=message) as caught:
        celu.simulate(fed.job, fed.guest, fed.hosts)
    assert caught.value.public() == "ModelError"


@pytest.mark.parametrize("value", [np.zeros((32, 6)), None, [1.0]])
def test_a_module_that_returns_no_tensor_is_named(value: Any) -> None:
    class Other(nn.Module):
        def forward(self, **inputs: Tensor) -> Any:
            return value

    fed = federation()
    with_host(fed, lambda module: Other())
    message = rf"the bottom model, .*Other, must return a tensor, got {type(value).__name__}"
    with pytest.raises(ModelError, match=message):
        celu.simulate(fed.job, fed.guest, fed.hosts)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 +", "cannot be imported: SyntaxError"),
        ("x = 1 / 0", r"cannot be imported: ZeroDivisionError.*broken_\d.py, line 1, in <module>"),
        ("class Net:\n  def __init__(self):\n    raise ValueError('no')", "cannot be created.*no"),
        (
            "def Net(columns):\n  return len(3)",
            r"cannot be created: TypeError.*broken_\d.py, line 2, in Net",
        ),
        ("import os\nos.nothing", r"cannot be imported: AttributeError.*broken_\d.py, line 2"),
        ("import sys\nsys.exit(0)", r"cannot be imported: SystemExit: 0.*broken_\d.py, line 2"),
    ],
)
def test_a_module_that_cannot_be_imported_or_created_is_a_model_error(
    tmp_path: Path, code: str, message: str
) -> None:
    name = f"broken_{len(code)}"
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(ModelError, match=message.replace(r"\d", r"\d+")):
        build_bottom(f"{name}:Net", {}, z_width=4, columns={}, sizes={}, folder=tmp_path)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("class Net:\n  def __init__(self, depth):\n    pass", "missing a required .*'depth'"),
        ("class Net:\n  def __init__(self): pass", r"unexpected .*'size'; got options \['size'\]"),
        ("Net = 5", "expected a class of modules, or a function .*, got an object of builtins.int"),
        ("from torch import nn\nNet = nn.Linear(2, 3)", "an object of torch.nn.modules.*Linear"),
        ("x = 1", "cannot import .* has no attribute 'Net'"),
    ],
)
def test_options_that_a_module_does_not_take_are_a_config_error(
    tmp_path: Path, code: str, message: str
) -> None:
    name = f"options_{len(code)}"
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(ConfigError, match=message):
        build_bottom(f"{name}:Net", {"size": 3}, z_width=4, columns={}, sizes={}, folder=tmp_path)


def test_a_module_may_ask_for_what_makes_tables(tmp_path: Path) -> None:
    (tmp_path / "own_tables.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, sizes, new_embedding):\n"
        "        super().__init__()\n"
        "        self.table = new_embedding(sizes['ids'][0], 3, 0.5)\n"
    )
    sizes = {"ids": (400,)}
    net = build_bottom("own_tables:Net", {}, z_width=4, columns={}, sizes=sizes, folder=tmp_path)
    table = net.table
    assert isinstance(table, nn.Embedding) and table.sparse
    assert tuple(table.weight.shape) == (400, 3)
    assert float(table.weight.detach().std()) == pytest.approx(0.5, rel=0.1)

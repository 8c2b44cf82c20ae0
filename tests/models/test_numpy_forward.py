"""The built-in models compute the same with NumPy as with PyTorch, up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from celu.models.losses import Output, to_scores
from celu.models.numpy_forward import numpy_bottom, numpy_scores, numpy_top
from celu.models.residual import ResidualTop, ResidualTower
from celu.models.tops import InnerProductTop, WideDeepTop
from celu.models.tower import Tower

SIZES = {"ids": [3, 5]}


def tower(**options: Any) -> Tower:
    torch.manual_seed(0)
    columns = {"ids": 2, "numbers": 4}
    return Tower(6, columns, SIZES, **{"embedding_dim": 8, "hidden": [16], **options})


def inputs(rows: int) -> dict[str, Tensor]:
    ids = torch.stack([torch.arange(rows) % size for size in SIZES["ids"]], dim=1)
    return {"ids": ids, "numbers": torch.randn(rows, 4)}


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("options", [{}, {"hidden": []}, {"relu_z": False}], ids=str)
def test_a_bottom_has_the_same_z(options: dict[str, Any], rows: int) -> None:
    module, given = tower(**options), inputs(rows)
    bottom = numpy_bottom(module)
    assert bottom is not None
    arrays = {name: tensor.numpy() for name, tensor in given.items()}
    arrays["ids"] = arrays["ids"].astype(np.int32)  # as in the files of a store
    z_BD = bottom(arrays)
    assert z_BD.dtype == np.float32
    assert z_BD == pytest.approx(module(**given).detach().numpy(), abs=1e-6)


@pytest.mark.parametrize(
    "module",
    [WideDeepTop([6, 6, 6]), WideDeepTop([6, 6, 6], 3, [8]), InnerProductTop([6, 6, 6])],
    ids=["wide", "deep", "inner product"],
)
def test_a_top_has_the_same_output(module: nn.Module) -> None:
    zs = [torch.randn(5, 6) for _ in range(3)]
    top = numpy_top(module)
    assert top is not None
    output = top([z.numpy() for z in zs])
    assert output == pytest.approx(module(*zs).detach().numpy(), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("binary", [[0.5], [-3.0], [-1000.0], [1000.0]]),
        ("multiclass", [[0.5, -1.0, 2.0], [1000.0, 0.0, -1000.0]]),
        ("regression", [[0.5], [7.0]]),
        ("regression", [[0.5, 1.0], [7.0, 2.0]]),
    ],
)
def test_scores_are_the_same(kind: Output, output: list[list[float]]) -> None:
    logits = torch.tensor(output)
    expected = to_scores(logits, kind)
    assert np.array(numpy_scores(logits.numpy(), kind)) == pytest.approx(expected.numpy())


@np.errstate(all="ignore")
def test_extreme_values_become_inf_or_nan() -> None:
    bottom, top = numpy_bottom(tower(relu_z=False)), numpy_top(InnerProductTop([6, 6]))
    assert bottom is not None and top is not None
    arrays = {name: tensor.numpy() for name, tensor in inputs(2).items()}
    z_BD = bottom({**arrays, "numbers": np.full((2, 4), np.inf, np.float32)})
    assert not np.isfinite(z_BD).all()
    assert np.isinf(top([np.full((1, 6), 3e38, np.float32)] * 2)).all()
    assert np.isnan(numpy_scores(np.array([[np.nan]]), "binary")).all()
    assert np.isnan(numpy_scores(np.array([[np.inf, np.inf]]), "multiclass")).all()


def test_other_modules_have_no_such_function() -> None:
    class Changed(Tower):
        pass

    hooked, biased = tower(), tower()
    hooked.layers[0].register_forward_hook(lambda *_: None)
    biased.layers[0] = nn.Linear(20, 16)
    large = tower(hidden=[4096])
    others = [Changed(6, {"numbers": 4}, {}), hooked, biased, large, tower().double(), None]
    assert [numpy_bottom(module) for module in others] == [None] * len(others)
    assert numpy_top(nn.Linear(6, 1)) is None and numpy_top(None) is None
    assert numpy_bottom(ResidualTower(8, {"numbers": 4}, {})) is None
    assert numpy_top(ResidualTop([8, 8])) is None

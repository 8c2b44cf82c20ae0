"""The built-in models: every option is explained, and wrong ones are refused by name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from torch import nn

from celu.errors import ConfigError
from celu.models.building import build_bottom, build_top
from celu.models.built_in import BOTTOMS, FACTS, TOPS, BuiltIn
from celu.models.losses import LOSSES

ALL = [*BOTTOMS.items(), *TOPS.items()]


def bottom(use: str, **options: Any) -> nn.Module:
    return build_bottom(use, options, z_width=8, columns={"numbers": 3}, sizes={})


@pytest.mark.parametrize(("name", "built_in"), ALL)
def test_every_option_is_explained_and_has_a_default(name: str, built_in: BuiltIn) -> None:
    parameters = inspect.signature(built_in.constructor).parameters
    assert list(built_in.options) == [key for key in parameters if key not in FACTS], name
    assert built_in.default_values.keys() == built_in.options.keys()
    assert inspect.Parameter.empty not in built_in.default_values.values()
    assert built_in.about and all(built_in.options.values())


@pytest.mark.parametrize(("name", "built_in"), ALL)
def test_every_default_is_a_valid_value(name: str, built_in: BuiltIn) -> None:
    built_in.check(built_in.default_values, name)


def test_every_loss_is_explained() -> None:
    assert all(loss.per_instance.__doc__ and loss.output for loss in LOSSES.values())


@pytest.mark.parametrize("use", list(BOTTOMS))
def test_every_bottom_is_built_by_its_name_alone(use: str) -> None:
    assert isinstance(bottom(use), BOTTOMS[use].constructor)


@pytest.mark.parametrize("use", list(TOPS))
def test_every_top_is_built_by_its_name_alone(use: str) -> None:
    assert isinstance(build_top(use, {}, z_widths=[8, 8]), TOPS[use].constructor)


def test_the_tower_of_dssm_differs_in_its_last_layer_only() -> None:
    assert isinstance(list(bottom("wdl").modules())[-1], nn.ReLU)
    assert isinstance(list(bottom("dssm").modules())[-1], nn.Linear)
    assert isinstance(list(bottom("dssm", relu_z=True).modules())[-1], nn.ReLU)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        bottom("wdl", embeding_dim=8)
    assert str(caught.value) == (
        "model.bottom: wdl: unknown option 'embeding_dim'; its options: embedding_dim, hidden, "
        'init_std, relu_z, pooling ("celu models" explains them)'
    )
    with pytest.raises(ConfigError, match=r"unknown option 'outputs'; its options: it has none"):
        build_top("dssm", {"outputs": 3}, z_widths=[4, 4])


def test_what_celu_passes_itself_is_no_option() -> None:
    with pytest.raises(ConfigError, match="unknown option 'z_width'"):
        bottom("wdl", z_width=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": "64"}, r"option hidden: .*got '64'"),
        ({"hidden": [64, 0]}, r"option hidden: 1: expected greater than 0, got 0"),
        ({"embedding_dim": 0}, r"option embedding_dim: expected greater than 0, got 0"),
        ({"embedding_dim": 8.5}, r"option embedding_dim: expected a valid integer, got 8.5"),
        ({"relu_z": 1}, r"option relu_z: expected a valid boolean, got 1"),
        ({"init_std": -0.1}, r"option init_std: expected greater than or equal to 0, got -0.1"),
        ({"init_std": float("nan")}, r"option init_std: expected a finite number"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_value_of_another_type_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^model.bottom: wdl: {message}"):
        bottom("wdl", **options)

"""The built-in models by name, with the options of each: what `celu models` lists.

A module's constructor has two kinds of parameters: facts that celu passes (the width of Z, the
columns and sizes of the inputs, some training rows, what makes tables), and options that a settings
file may give. The types of options are those of the constructor.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import nn

from celu.config.reading import describe
from celu.errors import ConfigError
from celu.models.residual import ResidualTop, ResidualTower
from celu.models.tops import InnerProductTop, WideDeepTop
from celu.models.tower import Tower

FACTS = {"z_width", "columns", "sizes", "examples", "new_embedding", "z_widths"}


@dataclass(frozen=True)
class BuiltIn:
    """A module that settings files name; `defaults` replaces defaults of its constructor.

    `options` says what each option means.
    """

    constructor: type[nn.Module]
    about: str
    options: Mapping[str, str]
    defaults: Mapping[str, Any]

    @cached_property
    def default_values(self) -> dict[str, Any]:
        """The default of every option, in the constructor's order."""
        parameters = inspect.signature(self.constructor).parameters
        own = {name: p.default for name, p in parameters.items() if name not in FACTS}
        return own | dict(self.defaults)

    @cached_property
    def facts(self) -> set[str]:
        """The facts that its constructor has parameters for."""
        return set(inspect.signature(self.constructor).parameters) & FACTS

    def check(self, options: Mapping[str, Any], what: str) -> None:
        """Raise ConfigError for an unknown option or a value of another type; `what` is for it."""
        unknown = sorted(options.keys() - self.options.keys())
        if unknown:
            known = ", ".join(self.options) or "it has none"
            raise ConfigError(
                f"{what}: unknown option {unknown[0]!r}; its options: {known} "
                '("celu models" explains them)'
            )
        types = get_type_hints(self.constructor.__init__, include_extras=True)
        for name, value in options.items():
            try:
                TypeAdapter(types[name], config=_STRICT).validate_python(value)
            except ValidationError as error:
                problem = describe(error)[0].lstrip(": ")
                raise ConfigError(f"{what}: option {name}: {problem}") from error

    def build(self, facts: Mapping[str, Any], options: Mapping[str, Any]) -> nn.Module:
        """A new module, from checked options and those of `facts` that it needs or has options for.

        The number of classes is both: a fact unless `outputs` is given.
        """
        needed = {name: value for name, value in facts.items() if name in self.facts}
        implied = {name: value for name, value in facts.items() if name in self.options}
        return self.constructor(**needed, **{**self.defaults, **implied, **options})


_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_INIT_STD = "the standard deviation of the initial weights"
_POOLING = "what the embeddings of a bag become: their mean or sum"
_TOWER = {
    "embedding_dim": "the width of the embedding of each id",
    "hidden": "the widths of the layers before Z",
    "init_std": _INIT_STD,
    "relu_z": "whether ReLU follows the last layer too",
    "pooling": _POOLING,
}

_RESIDUAL = {
    "width": "the width of the layers; within a block, twice that",
    "blocks": "the number of residual blocks",
    "dropout": "the share of values that a block drops in training",
}
_OUTPUTS = "the number of outputs; by default 1, or one for each class (multiclass)"

BOTTOMS: dict[str, BuiltIn] = {
    "wdl": BuiltIn(
        Tower,
        "The paper's tower: embeddings of ids beside numbers, linear layers with ReLU.",
        _TOWER,
        {},
    ),
    "dssm": BuiltIn(
        Tower,
        "The same tower with Z of both signs, for an inner product.",
        _TOWER,
        {"relu_z": False},
    ),
    "resnet": BuiltIn(
        ResidualTower,
        "A residual network on embeddings of ids and of numbers, for tables.",
        {
            "embedding_dim": "the width of the embedding of each id and each number",
            "bins": "the number of bins of a number, between quantiles of the training rows",
            "recurring": "embed at most this many recurring values of numbers that act as ids",
            "members": "predictions that are averaged; the same at all parties, divides z_width",
            "width": _RESIDUAL["width"],
            "blocks": _RESIDUAL["blocks"],
            "cross": "whether a cross layer multiplies the party's columns first",
            "dropout": _RESIDUAL["dropout"],
            "pooling": _POOLING,
        },
        {},
    ),
}
TOPS: dict[str, BuiltIn] = {
    "wdl": BuiltIn(
        WideDeepTop,
        "Concatenates all Z. Linear, as in the paper, unless it has hidden layers.",
        {
            "outputs": _OUTPUTS,
            "hidden": "the widths of layers between Z and the output: they let parties interact",
            "init_std": _INIT_STD,
        },
        {},
    ),
    "dssm": BuiltIn(
        InnerProductTop,
        "The inner product of the guest's Z and the sum of the hosts': one output, equal widths.",
        {},
        {},
    ),
    "resnet": BuiltIn(
        ResidualTop,
        "A residual network of all Z and of their products: the parties' features interact.",
        {"outputs": _OUTPUTS, "members": "as in the bottoms of all parties", **_RESIDUAL},
        {},
    ),
}

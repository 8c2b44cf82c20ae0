"""Building modules by name: a built-in ("wdl", "dssm") or the user's own ("module:Class").

A constructor is called with the options of the settings file and, of the facts known here (the
width of Z, the columns and sizes of the inputs), those that it has parameters for.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from celu.errors import ConfigError, ModelError
from celu.models.losses import LOSSES, Loss
from celu.models.tops import InnerProductTop, WideDeepTop
from celu.models.tower import Tower

Maker = Callable[..., nn.Module]
BOTTOMS: dict[str, Maker] = {"wdl": Tower, "dssm": partial(Tower, relu_z=False)}
TOPS: dict[str, Maker] = {"wdl": WideDeepTop, "dssm": InnerProductTop}


def find(use: str, built_in: Mapping[str, Any], what: str, folder: Path | None = None) -> Any:
    """What a name stands for; `folder` is looked in first for "module:Name".

    Raises ConfigError where there is no such thing.
    """
    if use in built_in:
        return built_in[use]
    module_name, colon, attribute = use.partition(":")
    if not colon:
        names = ", ".join(sorted(built_in))
        raise ConfigError(f"{what}: expected one of {names}, or module:Name; got {use!r}")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{what}: cannot load {use!r}: {error}") from error


def build(
    use: str,
    options: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    built_in: Mapping[str, Maker],
    what: str,
    folder: Path | None = None,
) -> nn.Module:
    """Build a module; raises ConfigError or, for what is not a module, ModelError."""
    make = find(use, built_in, what, folder)
    parameters = inspect.signature(make).parameters
    arguments = {name: value for name, value in facts.items() if name in parameters} | dict(options)
    try:
        module = make(**arguments)
    except TypeError as error:
        raise ConfigError(f"{what}: {use}: {error}; got options {sorted(options)}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{what}: {use}: expected an nn.Module, got {type(module).__name__}")
    return module


def find_loss(use: str, folder: Path | None = None) -> Loss:
    """A built-in loss, or the user's own function of (output, labels)."""
    found = find(use, LOSSES, "model.loss", folder)
    return found if isinstance(found, Loss) else Loss(found)

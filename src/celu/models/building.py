"""Builds modules by name: a built-in one (`built_in`) or the user's own ("module:Class").

A constructor is called with the options from the settings file, and with the width of Z, the
columns and sizes of the inputs, some training rows and what makes embedding tables, if it has
parameters for them.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from celu.errors import CeluError, ConfigError, ModelError
from celu.metrics.names import HIGHER_IS_BETTER
from celu.metrics.own import Metric, MetricLike
from celu.models.built_in import BOTTOMS, TOPS, BuiltIn
from celu.models.losses import LOSSES, Loss
from celu.models.tower import NewEmbedding, new_embedding
from celu.models.user_code import name_of
from celu.traceback_lines import last_lines


def resolve(use: str, built_in: Mapping[str, Any], what: str, folder: Path | None = None) -> Any:
    """The object that a setting names: a built-in one, or "module:Name".

    Modules are looked for in `folder` first. `what` is the setting, for messages. Raises
    ConfigError if there is no such object, ModelError if its module fails.
    """
    if use in built_in:
        return built_in[use]
    module_name, colon, attribute = use.partition(":")
    if not colon:
        names = ", ".join(sorted(built_in))
        raise ConfigError(f"{what}: expected one of {names}, or module:Name, got {use!r}")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        advice = ""
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            where = "" if folder is None else f"in {folder} and "
            advice = (
                f"; it was looked for {where}where Python finds its packages: put its file there, "
                "or add its folder to PYTHONPATH"
            )
        raise ConfigError(f"{what}: cannot import {use!r}: {error}{advice}") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{what}: {use!r} cannot be imported: {_where(error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise ConfigError(f"{what}: cannot import {use!r}: {error}") from error


def build_module(
    use: str,
    options: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    built_in: Mapping[str, BuiltIn],
    what: str,
    folder: Path | None = None,
) -> nn.Module:
    """Build a module from `options`, and those of `facts` that its constructor has parameters for.

    Raises ConfigError for wrong options, ModelError if it cannot be created or is no nn.Module.
    """
    constructor = resolve(use, built_in, what, folder)
    if isinstance(constructor, BuiltIn):
        constructor.check(options, f"{what}: {use}")
        return constructor.build(facts, options)
    if not callable(constructor) or isinstance(constructor, nn.Module):
        raise ConfigError(
            f"{what}: {use}: expected a class of modules, or a function that returns one, got an "
            f"object of {name_of(constructor)}"
        )
    signature = inspect.signature(constructor)
    known = {name: value for name, value in facts.items() if name in signature.parameters}
    arguments = known | dict(options)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{what}: {use}: {error}; got options {sorted(options)}") from error
    try:
        module = constructor(**arguments)
    except CeluError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(f"{what}: {use} cannot be created: {_where(error)}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{what}: {use}: expected an nn.Module, got {type(module).__name__}")
    return module


def _where(error: BaseException) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *last_lines(error)])


def build_bottom(
    use: str,
    options: Mapping[str, Any],
    *,
    z_width: int,
    columns: Mapping[str, int],
    sizes: Mapping[str, tuple[int, ...]],
    examples: Mapping[str, Tensor] | None = None,
    new_embedding: NewEmbedding = new_embedding,
    folder: Path | None = None,
) -> nn.Module:
    """A bottom model for inputs with these numbers of columns; raises what `build_module` does.

    `examples` are training rows, by input; none where the weights are loaded afterwards.
    `new_embedding` makes embedding tables, which may be sharded.
    """
    facts = {
        "z_width": z_width,
        "columns": dict(columns),
        "sizes": dict(sizes),
        "examples": examples,
        "new_embedding": new_embedding,
    }
    return build_module(use, options, facts, built_in=BOTTOMS, what="model.bottom", folder=folder)


def build_top(
    use: str,
    options: Mapping[str, Any],
    *,
    z_widths: Sequence[int],
    num_classes: int | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """A top model for Z of these widths, with an output for each class if there are several.

    Raises what `build_module` does.
    """
    facts: dict[str, Any] = {"z_widths": list(z_widths)}
    if num_classes is not None:
        facts["outputs"] = num_classes
    return build_module(use, options, facts, built_in=TOPS, what="model.top", folder=folder)


def find_loss(use: str, folder: Path | None = None) -> Loss:
    """A built-in loss, or one from the user's own function of (output, labels)."""
    found = resolve(use, LOSSES, "model.loss", folder)
    return found if isinstance(found, Loss) else Loss(found)


def find_metrics(uses: Sequence[str], what: str, folder: Path | None = None) -> list[MetricLike]:
    """Metrics by their built-in names, and the user's own as module:name; raises ConfigError."""
    found: list[MetricLike] = []
    for use in uses:
        one = resolve(use, {name: name for name in HIGHER_IS_BETTER}, what, folder)
        if not isinstance(one, str | Metric):
            raise ConfigError(
                f"{what}: {use}: expected a metric, got {type(one).__name__}; declare the function "
                "with @celu.metric(higher_is_better=True), or False"
            )
        found.append(one)
    return found

"""`celu models`: list the built-in models and losses, with their options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from celu.cli.console import Console

if TYPE_CHECKING:
    from celu.models.built_in import BuiltIn


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("models")(models)


def models() -> None:
    """List the built-in bottoms, tops and losses, and the options of each with their defaults.

    Name them in [bold]\\[model][/bold] of party.toml: bottom = { use = "wdl", hidden = [64] }.
    """
    console = Console()
    for line in lines():
        console.echo(line)


def lines() -> Iterator[str]:
    """What the command prints."""
    from celu.metrics.names import METRICS
    from celu.models.built_in import BOTTOMS, TOPS
    from celu.models.losses import LOSSES

    yield from _section("bottom (each party)", BOTTOMS)
    yield from _section("top (guest)", TOPS)
    yield "loss (guest)"
    for name, loss in LOSSES.items():
        about = " ".join((loss.per_instance.__doc__ or "").split())
        yield f"  {name}  {about} Metrics: {', '.join(METRICS[loss.prediction])}."


def _section(title: str, built_in: Mapping[str, BuiltIn]) -> Iterator[str]:
    yield title
    for name, module in built_in.items():
        yield f"  {name}  {module.about}"
        settings = {key: f"{key} = {toml_value(v)}" for key, v in module.default_values.items()}
        width = max(map(len, settings.values()), default=0)
        for key, setting in settings.items():
            yield f"    {setting:{width}}  {module.options[key]}"
    yield ""


def toml_value(value: Any) -> str:
    """A default as it would stand in a settings file."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)

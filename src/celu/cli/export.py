"""`celu export`: one party's part of a trained model, as a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from celu.cli.console import Console

if TYPE_CHECKING:
    from celu.serving.model_folder import ModelFacts


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export)


def export(
    run: Annotated[Path, typer.Argument(help="The run folder of one party; the run is done.")],
    out: Annotated[Path, typer.Option(help="The new folder.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an exported model.")] = False,
    formats: Annotated[
        str,
        typer.Option(
            "--format",
            help="Also write the modules for other runtimes: pt2 (torch.export), onnx, or "
            "pt2,onnx. A .pt2 file contains a pickle; celu never loads one.",
        ),
    ] = "",
    modules: Annotated[
        Path,
        typer.Option(help="With --format: the folder of your own modules, module:Class."),
    ] = Path(),
) -> None:
    """Write a party's part of a trained model: weights, model.json, schema.json and card.md.

    Each party exports its own run. All parts of a model have the same name, which is printed.
    """
    from celu.serving.export import export_run

    names = [name.strip() for name in formats.split(",") if name.strip()]
    facts = export_run(run, out, replace=force, formats=names, modules=modules.resolve())
    text = f"model {facts.name}, the part of {facts.party} ({facts.role}): {out}\n"
    Console().print(escape(text + _next_step(facts, out)), soft_wrap=True)


def _next_step(facts: ModelFacts, out: Path) -> str:
    if facts.bottom is None and facts.top is None:
        return f'to load it in Python, with your modules:\n  celu.load_model("{out}", ...)'
    command = f"celu predict party.toml --serving serving.toml --model {out} --store STORE"
    command += " --alignment ALIGNMENT"
    scores = " --out scores.parquet" if facts.role == "guest" else ""
    return f"to score the rows of a store, at all parties:\n  {command}{scores}"

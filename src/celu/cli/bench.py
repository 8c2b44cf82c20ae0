"""`celu bench`: run a bench of the source checkout that celu is installed from."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import typer

from celu.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "bench",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(bench)


def bench(context: typer.Context) -> None:
    """Measure speed and quality; needs a source checkout. The same as scripts/bench."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "bench" / "__main__.py").exists():
        raise ConfigError(
            "celu bench: the benches are not part of the installed package; clone the repository "
            "and run scripts/bench there"
        )
    # For this process, and for the parties and workers that a bench starts.
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(root), os.environ.get("PYTHONPATH")])
    )
    benches = typer.main.get_command(import_module("bench.__main__").app)
    benches.main(context.args, prog_name="celu bench", standalone_mode=False)

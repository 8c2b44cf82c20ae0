"""The one stream of what happened in a run, and the folder it is kept in.

A run folder holds `settings.json` (contract, private settings, versions), `events.jsonl` (one JSON
object a line: seconds since the start, the event, its fields), `weights.safetensors`,
`summary.json` and, where the guest chose for itself, `replay.toml`; of a run that can go on, also
`run.json` and `checkpoints/` (`checkpoint`). It is this party's own: nothing in it is meant for a
peer.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from celu.errors import CheckpointError, ConfigError
from celu.events import Attempt, Callback, Event
from celu.version import __version__

if TYPE_CHECKING:
    from torch import nn


class RunFolder:
    """A run's folder: a new one or, where the run `goes_on`, the one in which it was interrupted.

    Another run's is refused, so that nothing is overwritten, and so is one that a process has in
    use: raises ConfigError. A run that never began (its data was refused, its peer never came)
    can always go on. Events are added to those of earlier attempts, and time goes on from theirs.

    Whatever cannot be written, as on a full disk, raises CheckpointError: a run that cannot be
    recorded stops, and goes on from its last checkpoint once there is room.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, goes_on: bool = False) -> None:
        self.path = path
        with _written(path):
            path.mkdir(parents=True, exist_ok=True)
            self._events = (path / "events.jsonl").open("a+", encoding="utf-8", buffering=1)
        try:
            _lock(path, self._events)
            earlier = _earlier_events(path, self._events, goes_on)
            latest = max((event["t"] for event in earlier), default=0.0)
            self._started = time.monotonic() - latest
            self._listeners: list[Callback] = []
            self._emitting = threading.Lock()  # links speak from threads of their own
            with _written(path / "summary.json"):  # of an earlier attempt, which was not the end
                (path / "summary.json").unlink(missing_ok=True)
            self._write_json("settings.json", {**settings, "versions": versions()})
            attempts = sum(event["event"] == "attempt" for event in earlier)
            self.emit(Attempt(number=attempts + 1))
        except BaseException:
            self._close()
            raise

    def listen(self, listener: Callback) -> None:
        """Have every later event passed on, as a progress bar needs it."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Record an event, from any thread."""
        with self._emitting:
            seconds = round(time.monotonic() - self._started, 4)
            line = json.dumps({"t": seconds, "event": event.event, **event.fields}) + "\n"
            with _written(self.path / "events.jsonl"):
                self._events.write(line)
            event = event.model_copy(update={"t": seconds})
            for listener in self._listeners:
                listener(event)

    def notice(self, event: Event) -> None:
        """Record an event if it can be, for a thread that must not fail: a later `emit` will."""
        with suppress(CheckpointError):
            self.emit(event)

    def save_weights(self, modules: Mapping[str, nn.Module | None]) -> None:
        """Keep the trained weights, each under its module's name."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        tensors = {
            f"{name}.{key}": tensor.detach().cpu().contiguous()
            for name, module in modules.items()
            if module is not None
            for key, tensor in module.state_dict().items()
        }
        with self._replacing("weights.safetensors") as partial:
            try:
                save_file(tensors, partial)
            except SafetensorError as error:  # what the disk said is in its words only
                raise OSError(str(error)) from error

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Record the end of the run, and let go of the folder."""
        try:
            seconds = round(time.monotonic() - self._started, 3)
            self._write_json("summary.json", {**summary, "seconds": seconds})
        finally:
            self._close()

    def write(self, name: str, text: str) -> None:
        """Keep a file, whole or not at all."""
        with self._replacing(name) as partial:
            partial.write_text(text, encoding="utf-8")

    @contextmanager
    def _replacing(self, name: str) -> Iterator[Path]:
        """Where to write a file that then takes its place."""
        partial = self.path / f"{name}.partial"
        with _written(self.path / name):
            try:
                yield partial
                partial.replace(self.path / name)
            except OSError:
                partial.unlink(missing_ok=True)  # it may hold the very room that is lacking
                raise

    def _close(self) -> None:
        with suppress(OSError):  # an event that there is no room for
            self._events.close()

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write(name, json.dumps(content, indent=2, default=str) + "\n")


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """What the disk refuses in here is told with the file and the next step."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror or error}); make room, or look at the "
            "disk, and start again at all parties: a run goes on from its last checkpoint"
        ) from error


def _lock(path: Path, events: TextIO) -> None:
    """Hold the folder until the events are closed or the process ends, however it ends."""
    try:
        fcntl.flock(events, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a folder that nobody uses, got one in which a run is going on; "
            "wait for it, or choose another with --out"
        ) from error


def _earlier_events(path: Path, file: TextIO, goes_on: bool) -> list[dict[str, Any]]:
    """The events of earlier attempts at a run; an event that was torn is cut off.

    Raises ConfigError where the folder holds a run, or something else, that is not to be added to.
    """
    data = (path / "events.jsonl").read_bytes()
    whole = data.rfind(b"\n") + 1
    try:
        events = [json.loads(line) for line in data[:whole].splitlines()]
        ours = all(isinstance(e["t"], float | int) and isinstance(e["event"], str) for e in events)
    except (ValueError, TypeError, KeyError):
        ours = False
    began = ours and any(event["event"] in ("started", "resumed") for event in events)
    may_be_added_to = not began or (goes_on and (path / "run.json").exists())
    if not ours or not may_be_added_to:
        raise ConfigError(
            f"{path}: expected a folder without a run, or of a run that can go on; got one with "
            "events.jsonl; choose another with --out, or remove it"
        )
    file.truncate(whole)
    return events


def versions() -> dict[str, str]:
    """What a bug report or a reader of a result needs to know of the software."""
    packages = ("torch", "numpy", "grpcio", "pyarrow", "cryptography", "safetensors", "pydantic")
    found = {name: installed(name) for name in packages}
    return {"celu": __version__, "python": platform.python_version(), **found}


def installed(package: str) -> str:
    """The version of a package, or "absent"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def hardware() -> dict[str, Any]:
    """What a reader of a measurement needs to know of the machine."""
    import torch  # here: commands that compute nothing start at once

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": gpu,
        "platform": sys.platform,
    }

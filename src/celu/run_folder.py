"""Writes the folder of a run: its settings, events and results.

It contains `settings.json` (contract, private settings, versions), `events.jsonl` (one JSON object
per line: seconds since the start, event, fields), `weights.safetensors`, `summary.json` and, with
`method = "auto"`, the guest's `replay.toml`. A run that can be resumed also has `run.json` and
`checkpoints/` (see `checkpoint`). The folder is private to its party: what is created here is
readable by its owner only. `record` reads it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from celu import open_files
from celu.errors import CheckpointError, ConfigError
from celu.events import Attempt, Callback, Event, Warned
from celu.version import __version__

if TYPE_CHECKING:
    from torch import nn

_DAMAGED = "events.jsonl.damaged"


class RunFolder:
    """A run's folder: a new folder or, with `resume`, that of an interrupted run.

    Raises ConfigError for the folder of another run, so that nothing is overwritten, and for a
    folder that another process uses. A folder in which training never started (its data was
    refused, its peer never connected) can always be used again. Events are appended to those of
    earlier attempts, and time continues from theirs. Lines of a resumed run's log that cannot be
    read are removed with a warning event; `events.jsonl.damaged` is a copy of the log with them.

    Raises CheckpointError if a file cannot be written, for example on a full disk: the run stops,
    and can be resumed from its last checkpoint once there is space.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path = path
        with _reporting_write_errors(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            events = path / "events.jsonl"
            self._events = open_files.retry(
                lambda: open(events, "a+", 1, encoding="utf-8", opener=_open_private)  # noqa: SIM115
            )
        try:
            _lock(path, self._events)
            earlier, num_damaged = _read_earlier_events(path, self._events, resume)
            latest = max((event["t"] for event in earlier), default=0.0)
            self._started = time.monotonic() - latest
            self._callbacks: list[Callback] = []
            self._emitting = threading.Lock()  # links emit from their own threads
            with _reporting_write_errors(path / "summary.json"):  # of an earlier attempt
                (path / "summary.json").unlink(missing_ok=True)
            self._write_json("settings.json", {**settings, "versions": versions()})
            attempts = sum(event["event"] == "attempt" for event in earlier)
            self.emit(Attempt(number=attempts + 1))
            if num_damaged:
                message = f"events.jsonl: {num_damaged} damaged lines removed; see {_DAMAGED}"
                self.emit(Warned(message=message))
        except BaseException:
            self._close()
            raise

    def add_callback(self, callback: Callback) -> None:
        """Call a function with every later event, for example to update a progress bar."""
        self._callbacks.append(callback)

    def emit(self, event: Event) -> None:
        """Record an event, from any thread."""
        with self._emitting:
            seconds = round(time.monotonic() - self._started, 4)
            line = json.dumps({"t": seconds, "event": event.event, **event.fields}) + "\n"
            with _reporting_write_errors(self.path / "events.jsonl"):
                self._events.write(line)
            event = event.model_copy(update={"t": seconds})
            for callback in self._callbacks:
                callback(event)

    def try_emit(self, event: Event) -> None:
        """Record an event if possible, on a thread that must not fail: a later `emit` raises."""
        with suppress(CheckpointError):
            self.emit(event)

    def save_weights(self, modules: Mapping[str, nn.Module | None]) -> None:
        """Write `weights.safetensors`; each key starts with its module's name."""
        tensors = {
            f"{name}.{key}": tensor.detach().cpu().contiguous()
            for name, module in modules.items()
            if module is not None
            for key, tensor in module.state_dict().items()
        }

        def save() -> None:
            from safetensors import SafetensorError
            from safetensors.torch import save_file

            try:
                save_file(tensors, partial)
            except SafetensorError as error:  # it wraps an OSError, such as that of a full disk
                number = re.search(r"os error (\d+)", str(error))
                raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error

        with self._atomic("weights.safetensors") as partial:
            open_files.retry(save)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary and unlock the folder."""
        try:
            seconds = round(time.monotonic() - self._started, 3)
            self._write_json("summary.json", {**summary, "seconds": seconds})
        finally:
            self._close()

    def write(self, name: str, text: str) -> None:
        """Write a file atomically."""
        with self._atomic(name) as partial:
            open_files.retry(lambda: partial.write_text(text, encoding="utf-8"))

    @contextmanager
    def _atomic(self, name: str) -> Iterator[Path]:
        """A temporary path that replaces the file on success."""
        partial = self.path / f"{name}.partial"
        with _reporting_write_errors(self.path / name):
            try:
                with open_files.retry(lambda: open(partial, "wb", opener=_open_private)):
                    pass  # with its permissions before it has any content
                yield partial
                partial.replace(self.path / name)
            except OSError:
                partial.unlink(missing_ok=True)  # free its space: the disk may be full
                raise

    def _close(self) -> None:
        with suppress(OSError):  # the last event may not fit on the disk
            self._events.close()

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write(name, json.dumps(content, indent=2, default=str) + "\n")


@contextmanager
def _reporting_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a CheckpointError with the file and the next step."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror or error}); free some space or check the "
            "disk, and start again at all parties: the run resumes from its last checkpoint"
        ) from error


def _open_private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that it creates is readable by its owner only."""
    return os.open(path, flags, 0o600)


def _lock(path: Path, events: TextIO) -> None:
    """Lock the folder until the events file is closed or the process ends."""
    try:
        fcntl.flock(events, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(
            f"{path}: another process uses this run folder; "
            "wait for it to end, or choose another folder with --out"
        ) from error


def _read_earlier_events(
    path: Path, file: TextIO, resume: bool
) -> tuple[list[dict[str, Any]], int]:
    """The events of earlier attempts at a run, and the number of damaged lines removed.

    An incomplete last line is cut off. Raises ConfigError if the folder belongs to another run, or
    if celu did not write events.jsonl.
    """
    data = (path / "events.jsonl").read_bytes()
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].split(b"\n")[:-1]
    parsed = [_parse_event(line) for line in lines]
    events = [event for event in parsed if event is not None]
    num_damaged = len(lines) - len(events)
    has_started = any(event["event"] in ("started", "resumed") for event in events)
    if (num_damaged or has_started) and not (resume and _can_resume(path)):
        raise ConfigError(
            f"{path}: the folder contains the events.jsonl of a run that cannot be resumed; "
            "choose another folder with --out, or remove this one"
        )
    with _reporting_write_errors(path / "events.jsonl"):
        if num_damaged:
            with open_files.retry(
                lambda: open(path / _DAMAGED, "wb", opener=_open_private)
            ) as copy:
                copy.write(data)
            file.truncate(0)  # in place: the lock belongs to this file
            file.writelines(json.dumps(event) + "\n" for event in events)
            file.flush()
        else:
            file.truncate(whole)
    return events, num_damaged


def _parse_event(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None if the line is damaged."""
    try:
        event: dict[str, Any] = json.loads(line)
        is_event = isinstance(event["event"], str) and math.isfinite(event["t"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return event if is_event else None


def _can_resume(path: Path) -> bool:
    """Whether there are checkpoints, or at least `run.json`: each of them identifies the run."""
    return (path / "run.json").exists() or any((path / "checkpoints").glob("round-*"))


def versions() -> dict[str, str]:
    """Versions of the software, for bug reports and results."""
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
    """The machine's hardware, for the record of a measurement."""
    import torch  # here: torch takes seconds, and other commands do not need it

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": gpu,
        "platform": sys.platform,
    }

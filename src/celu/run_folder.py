"""Writes the folder of a run: its settings, events and results.

It contains `settings.json` (contract, private settings, versions), `events.jsonl` (one JSON object
per line: seconds since the start, event, fields), `weights.safetensors`, `trained.json` (the
identity of the model), `summary.json`, the guest's `scores.parquet` (of the held-out rows, with
their labels) and, with `method = "auto"`, its `replay.toml`. A run that can be resumed also has
`run.json` and `checkpoints/` (see `checkpoint`).

The folder is private to its party: what is created here is readable by its owner only. `record`
reads it.
"""

from __future__ import annotations

import errno
import fcntl
import json
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
from typing import TYPE_CHECKING, Any, BinaryIO

from celu import open_files
from celu.errors import CallbackError, CheckpointError, ConfigError
from celu.event_log import DAMAGED, LOG, EventLog, can_resume, check_log, reporting_write_errors
from celu.events import Callback, Event
from celu.version import __version__

if TYPE_CHECKING:
    from torch import nn

SCORES = "scores.parquet"
BASELINE = "baseline"  # in a guest's run folder: the run of the guest alone


class RunFolder:
    """A run's folder: a new folder or, with `resume`, that of an interrupted run.

    Raises ConfigError for the folder of another run, so that nothing is overwritten, and for a
    folder that another process uses. A folder in which training never started (its data was
    refused, its peer never connected) can always be used again. Events are appended to those of
    earlier attempts, and time continues from theirs. Lines of a resumed run's log that cannot be
    read are removed with a warning event; `events.jsonl.damaged` is a copy of the log with them.

    With `keep_done`, the summary of a run that is done under the same contract stays until the run
    is done again (`is_done`): what ends this attempt otherwise, such as an absent peer, does not
    undo it. Otherwise the summary of an earlier attempt is removed.

    Raises CheckpointError if a file cannot be written, for example on a full disk: the run stops,
    and can be resumed from its last checkpoint once there is space.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        *,
        resume: bool = False,
        keep_done: bool = False,
    ) -> None:
        self.path = path
        with reporting_write_errors(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = _RealLogFile(path)
        try:
            self._file.lock()
            is_resumable = resume and can_resume(_names(path), _names(path / "checkpoints"))
            self._log = EventLog(path, self._file, time.monotonic, can_resume=is_resumable)
            self._callbacks: list[Callback] = []
            self._callback_error: CallbackError | None = None  # of a link's thread
            self._emitting = threading.Lock()  # links emit from their own threads
            self.is_done = is_resumable and keep_done and _is_done(path, settings)
            with reporting_write_errors(path / "summary.json"):  # of an earlier attempt
                if not self.is_done:
                    (path / "summary.json").unlink(missing_ok=True)
            self._write_json("settings.json", {**settings, "versions": versions()})
            for event in self._log.opening_events():
                self.emit(event)
        except BaseException:
            self._close()
            raise

    def add_callback(self, callback: Callback) -> None:
        """Call a function with every later event, for example to update a progress bar."""
        self._callbacks.append(callback)

    def emit(self, event: Event) -> None:
        """Record an event, from any thread."""
        with self._emitting:
            if self._callback_error is not None:
                raise self._callback_error
            event = self._log.append(event)
            for callback in self._callbacks:
                callback(event)

    def try_emit(self, event: Event) -> None:
        """Record an event if possible, on a thread that must not fail: a later `emit` raises."""
        try:
            self.emit(event)
        except CallbackError as error:
            self._callback_error = error
        except CheckpointError:
            pass  # the next event cannot be written either

    def save_weights(self, modules: Mapping[str, nn.Module | None]) -> None:
        """Write `weights.safetensors`; each key starts with its module's name."""
        from celu.model_identity import weights_of

        tensors = weights_of(modules)
        memory: set[int] = set()
        for name, tensor in tensors.items():  # tied weights: safetensors refuses shared memory
            pointer = tensor.untyped_storage().data_ptr()
            if pointer and pointer in memory:
                tensors[name] = tensor.clone()
            memory.add(pointer)

        def save() -> None:
            from safetensors import SafetensorError
            from safetensors.torch import save_file

            try:
                save_file(tensors, partial)
            except SafetensorError as error:  # it wraps an OSError, such as that of a full disk
                number = re.search(r"os error (\d+)", str(error))
                raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error

        with self.atomic("weights.safetensors") as partial:
            open_files.retry(save)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, unless that of a finished run stays, and unlock the folder."""
        try:
            if self.is_done and summary.get("status") != "done":
                return
            seconds = round(self._log.seconds, 3)
            self._write_json("summary.json", {**summary, "seconds": seconds})
        finally:
            self._close()

    def write(self, name: str, text: str) -> None:
        """Write a file atomically."""
        with self.atomic(name) as partial:
            open_files.retry(lambda: partial.write_text(text, encoding="utf-8"))

    @contextmanager
    def atomic(self, name: str) -> Iterator[Path]:
        """A temporary path that replaces the file on success."""
        partial = self.path / f"{name}.partial"
        with reporting_write_errors(self.path / name):
            try:
                with open_files.retry(lambda: open(partial, "wb", opener=_open_private)):
                    pass  # with its permissions before it has any content
                yield partial
                partial.replace(self.path / name)
            except Exception:
                partial.unlink(missing_ok=True)  # free its space: the disk may be full
                raise

    def _close(self) -> None:
        with suppress(OSError):  # the last event may not fit on the disk
            self._file.close()

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write(name, json.dumps(content, indent=2, default=str) + "\n")


def read_summary(path: Path) -> dict[str, Any]:
    """The summary of the run in a folder; empty if there is none, or it is damaged."""
    return _read_json(path / "summary.json")


def _is_done(path: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the run in a folder is done, under the contract in these settings."""
    job = _read_json(path / "settings.json").get("job")
    is_same = job == json.loads(json.dumps(settings.get("job"), default=str))
    return is_same and read_summary(path).get("status") == "done"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def check_run_folder(path: Path) -> None:
    """Raise the error with which a run would refuse this folder; changes nothing."""
    with reporting_write_errors(path):
        _check_writable(path)
    if not (path / LOG).exists():
        return
    with reporting_write_errors(path), (path / LOG).open("rb") as file:
        _lock(file, path)
        is_resumable = can_resume(_names(path), _names(path / "checkpoints"))
        check_log(path, file, can_resume=is_resumable)


def _check_writable(path: Path) -> None:
    """Raise the OSError of creating this folder, or a file in it."""
    nearest = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not nearest.is_dir():
        code = errno.EEXIST if nearest == path else errno.ENOTDIR
        raise OSError(code, os.strerror(code))
    for place in (nearest, *(file for file in [path / LOG] if file.exists())):
        if not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _lock(file: BinaryIO, folder: Path) -> None:
    """Lock a run folder by its log until the file is closed; raises ConfigError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(
            f"{folder}: another process uses this run folder; "
            "wait for it to end, or choose another folder with --out"
        ) from error


def _open_private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that it creates is readable by its owner only."""
    return os.open(path, flags, 0o600)


class _RealLogFile:
    """`events.jsonl` in a run folder; see `LogFile`. Its lock is the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO = open_files.retry(
            lambda: open(folder / LOG, "ab", 0, opener=_open_private)  # noqa: SIM115
        )

    def lock(self) -> None:
        """Lock the folder until the file is closed or the process ends; raises ConfigError."""
        _lock(self._file, self._folder)

    def close(self) -> None:
        """Close and unlock it."""
        self._file.close()

    def lines(self) -> Iterator[bytes]:
        """See `LogFile`."""
        return _lines(self._folder / LOG)

    def append(self, line: bytes) -> None:
        """See `LogFile`."""
        rest = memoryview(line)
        while rest:  # on a full disk, the first write may be short
            rest = rest[self._file.write(rest) :]

    def truncate(self, size: int) -> None:
        """See `LogFile`."""
        self._file.truncate(size)

    def copy_damaged(self) -> Iterator[bytes]:
        """See `LogFile`."""
        path = self._folder / DAMAGED
        with open_files.retry(lambda: open(path, "wb", opener=_open_private)) as copy:
            copy.writelines(self.lines())
        return _lines(path)


def _lines(path: Path) -> Iterator[bytes]:
    with open_files.retry(lambda: path.open("rb")) as file:
        yield from file


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


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

"""The datasets of a study on disk, written once and opened by every worker process.

FOLDER/NAME/guest/store and FOLDER/NAME/host/store. A dataset is renamed into place when it is
complete.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.pair import MAX_CODES
from bench.paper.profiles import Task
from bench.report import Log
from bench.samples import prepare_sample
from celu.config.schema import Split
from celu.data.clicks import Shape, write_clicks
from celu.data.flights import write_flights
from celu.errors import ConfigError


@dataclass(frozen=True)
class Stores:
    """The folder of the datasets, and the folder of the user's samples, if there is one."""

    folder: Path
    data: Path | None
    log: Log

    def folder_for(self, task: Task) -> Path:
        """The folder of a task's data, written first if it does not exist; raises DataError."""
        rows = f"-{task.shape.rows}" if task.source == "made-up" else ""
        folder = self.folder / f"{task.name}-{task.source}{rows}"
        if not folder.exists():
            self.log(f"writing {folder.name} (once; later runs read it from {self.folder})")
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            self._write(task, partial)
            partial.rename(folder)
        return folder

    def _write(self, task: Task, folder: Path) -> None:
        if task.source == "flights":
            write_flights(folder)
            (folder / "airline").rename(folder / "guest")
            (folder / "weather").rename(folder / "host")
        elif task.source == "sample":
            if self.data is None:
                raise ConfigError(
                    f"--data: expected the folder with a sample of {task.name}, which celu does "
                    "not ship; or choose --profile smoke"
                )
            prepare_sample(folder, task.name, self.data, Split())
        else:
            clicks: Shape = "avazu" if task.name == "avazu" else "criteo"
            write_clicks(folder, clicks, rows=task.shape.rows, max_codes=MAX_CODES)

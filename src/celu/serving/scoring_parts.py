"""The work folder of a prediction: finished parts of its scores file, from which it resumes.

    .NAME.work/work.json                     what the scores depend on
    .NAME.work/part-000000000-000000512.parquet   the scores of chunks 0 to 511, a scores file

It is next to the scores file NAME and exists until that is complete. A part is written completely
or not at all. Parts that were made from other rows, another model or another contract are deleted.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from celu.config.schema import ClassLabel
from celu.data.folder import sync
from celu.errors import ConfigError, DataError
from celu.metrics.names import Output
from celu.scores.file import ScoreWriter, read_scores
from celu.serving.predict_session import Scored
from celu.serving.rows import ChunkPlan

WORK_FILE = "work.json"
_PART = re.compile(r"part-(\d{9,12})-(\d{9,12})\.parquet")
_MAX_WORK_BYTES = 1 << 20
# A part is complete when it has this many rows or bytes of scores.
PART_ROWS, _PART_BYTES = 1 << 16, 64 << 20


class ScoringParts:
    """Buffers the scores of chunks and writes them part by part; use as a context manager.

    `hosts` are the names in the column `hosts` of aligned rows, `classes` those of the labels, if
    they are other than codes. Raises ConfigError if another
    process works on the same scores file, or if the folder cannot be written.
    """

    def __init__(
        self,
        out: Path,
        *,
        model: str,
        output: Output,
        hosts: str,
        classes: Sequence[ClassLabel] | None = None,
        part_rows: int = PART_ROWS,
    ) -> None:
        self._out = out
        self.folder = out.parent / f".{out.name}.work"
        self._model = model
        self._output: Output = output
        self._classes = classes
        self._hosts = hosts
        self._part_rows = part_rows
        self._lock = -1
        self._parts: list[Path] = []
        self._next = 0  # the chunk after the last part
        self._buffered: list[Scored] = []
        self._buffered_rows = 0

    @property
    def next_chunk(self) -> int:
        """The first chunk that has no scores on disk."""
        return self._next

    def __enter__(self) -> ScoringParts:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(
                f"{self._out}: another process is writing it; wait for it to end"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self._out}: cannot be written: {error.strerror}") from error
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._lock)

    def begin(self, work: Mapping[str, Any], plan: ChunkPlan) -> int:
        """See `ScoreSink`. Scores that are not on disk yet are dropped."""
        self._parts, self._next = [], 0
        self._buffered, self._buffered_rows = [], 0
        if self._read_work() == dict(work):
            self._parts, self._next = self._intact(plan)
        try:
            for path in self.folder.iterdir():
                if path not in self._parts:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            self._write_work(work)
        except OSError as error:
            raise self._unwritable(error) from error
        return self._next

    def add(self, scored: Scored) -> None:
        """See `ScoreSink`."""
        self._buffered.append(scored)
        self._buffered_rows += len(scored.scores)
        num_bytes = self._buffered_rows * scored.scores[:1].nbytes
        if self._buffered_rows >= self._part_rows or num_bytes >= _PART_BYTES:
            self._write_part()

    def finish(self, num_classes: int | None) -> None:
        """Write the scores file from the parts, and remove the folder.

        `num_classes` is that of a multiclass model.
        """
        self._write_part()
        # Within the folder: an interrupted attempt leaves nothing elsewhere.
        complete = self.folder / "scores.parquet"
        with self._writer(complete, num_classes) as file:
            for part in self._parts:
                scores = read_scores(part)
                names = scores.hosts.cast("string").to_pylist()
                file.write(scores.ids, scores.scores, names, scores.fallback)
        try:
            complete.replace(self._out)
            sync(self._out.parent)
        except OSError as error:
            raise self._unwritable(error) from error
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_part(self) -> None:
        if not self._buffered:
            return
        first, stop = self._buffered[0].chunk, self._buffered[-1].chunk + 1
        path = self.folder / f"part-{first:09}-{stop:09}.parquet"
        shape = self._buffered[0].scores.shape
        ids = pa.concat_arrays([scored.ids for scored in self._buffered])
        scores = [scored.scores.numpy() for scored in self._buffered]
        flags = np.repeat(
            [scored.is_fallback for scored in self._buffered], [len(part) for part in scores]
        )
        names = ["" if is_fallback else self._hosts for is_fallback in flags]
        with self._writer(path, shape[1] if len(shape) > 1 else None) as file:
            file.write(ids, np.concatenate(scores), names, flags)
        self._parts.append(path)
        self._next, self._buffered, self._buffered_rows = stop, [], 0

    def _writer(self, path: Path, num_classes: int | None) -> ScoreWriter:
        return ScoreWriter(
            path,
            model=self._model,
            output=self._output,
            num_classes=num_classes,
            classes=self._classes,
            ids_are_unique=True,  # those of the store are
        )

    def _intact(self, plan: ChunkPlan) -> tuple[list[Path], int]:
        """The parts from the first chunk on without a gap, and the chunk after them."""
        found = {}
        for path in self.folder.iterdir():
            if match := _PART.fullmatch(path.name):
                found[int(match[1])] = (path, int(match[2]))
        parts: list[Path] = []
        chunk = 0
        while chunk in found:
            path, stop = found[chunk]
            if not chunk < stop <= plan.num_chunks:
                break
            try:
                scores = read_scores(path)
            except DataError:
                break
            if (scores.model, scores.output) != (self._model, self._output):
                break
            if len(scores) != plan.rows(chunk, stop):
                break
            parts.append(path)
            chunk = stop
        return parts, chunk

    def _read_work(self) -> Any:
        """What the parts depend on; None if the file is missing or damaged."""
        try:
            with (self.folder / WORK_FILE).open("rb") as file:
                return json.loads(file.read(_MAX_WORK_BYTES))
        except (OSError, ValueError, RecursionError):
            return None

    def _write_work(self, work: Mapping[str, Any]) -> None:
        partial = self.folder / f"{WORK_FILE}.partial"
        partial.write_text(json.dumps(work, indent=1) + "\n", encoding="utf-8")
        sync(partial)
        partial.replace(self.folder / WORK_FILE)
        sync(self.folder)

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"{self._out}: cannot be written: {error.strerror or error}")

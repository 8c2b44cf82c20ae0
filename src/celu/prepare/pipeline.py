"""From raw files to stores: `schema.json`, `train.parquet` and `test.parquet` in one folder.

One scan of the raw files may fill several stores (a guest's and a host's). It learns what is to be
learnt from the training rows and puts all rows aside by the first bits of their tags; then, bucket
by bucket, they are sorted, finished and written. Memory does not grow with the number of rows, but
with that of the distinct values of vocabularies, which is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from celu.config.schema import SCHEMA_FILE, Declared, read_store_schema
from celu.data.folder import NewFolder
from celu.errors import ConfigError, DataError
from celu.prepare.encoders import Room
from celu.prepare.new_store import NewStore, Report, knowing, learning
from celu.prepare.passes import Frame, Progress, all_kinds, check_labels, finish, scan
from celu.prepare.raw import RawFile
from celu.prepare.spill import Spill, buckets_for

__all__ = ["Progress", "Report", "Target", "prepare", "prepare_like"]


class Target(NamedTuple):
    """A store to be made."""

    declared: Declared
    out: Path


def _silent(phase: str, done: int, total: int) -> None:
    pass


def prepare(
    sources: Sequence[Path],
    targets: Sequence[Target],
    progress: Progress = _silent,
    *,
    replace: bool = False,
) -> list[Report]:
    """Make stores from raw files, in one scan; they have `source`, `id` and `split` in common.

    Raises ConfigError or DataError, and then leaves nothing. `replace` allows a store to stand
    under a name already; it makes way at the very end.
    """
    frames = [Frame(d.source, d.id, d.split) for d, _ in targets]
    if any(frame != frames[0] for frame in frames):
        raise ConfigError("stores made in one scan must have the same source, id and split")
    room = Room()
    stores = [learning(declared, out, room) for declared, out in targets]
    return _make(sources, frames[0], stores, progress, replace)


def prepare_like(
    sources: Sequence[Path],
    store: Path,
    out: Path,
    progress: Progress = _silent,
    *,
    replace: bool = False,
) -> Report:
    """Put new rows through what a store has learnt: they are the test rows of a new store.

    Labels may be absent from the raw files, and then are from the rows; the schema stays that of
    the store, by its digest. Raises as `prepare` does.
    """
    known = read_store_schema(store)
    names = [RawFile(path, known.source).names() for path in sources]
    labelled = any(known.label in some for some in names)
    frame = Frame(known.source, known.id, known.split, all_test=True)
    new = knowing(known, out, labelled=labelled)
    return _make(sources, frame, [new], progress, replace)[0]


def _make(
    sources: Sequence[Path],
    frame: Frame,
    stores: Sequence[NewStore],
    progress: Progress,
    replace: bool,
) -> list[Report]:
    if not sources:
        raise ConfigError("expected raw files, got none")
    files = [RawFile(path, frame.source) for path in sources]
    kinds = all_kinds(frame, stores)
    for file in files:
        file.check(kinds)
    named = str(sources[0]) + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
    with ExitStack() as stack:
        news = [
            stack.enter_context(NewFolder(store.out, SCHEMA_FILE, replace=replace))
            for store in stores
        ]
        folders = [new.path for new in news]
        buckets = buckets_for(sum(file.text_bytes(kinds) for file in files))
        try:
            with Spill(folders[0] / "rows.spill", buckets) as spill:
                scan(files, kinds, frame, stores, spill, progress)
                if not frame.all_test:
                    check_labels(named, stores)
                rows = finish(named, frame, stores, folders, spill, progress)
            for store, folder in zip(stores, folders, strict=True):
                store.schema(rows).write(folder)
            reports = [store.report(rows) for store in stores]
            for new in news:
                new.publish()
        except OSError as error:
            raise DataError(
                f"{stores[0].out}: expected to write it, got: {error.strerror or error}"
            ) from error
    return reports

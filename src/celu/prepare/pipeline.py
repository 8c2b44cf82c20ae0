"""From raw files to stores: `schema.json` and a Parquet file for each part, in one folder.

One scan of the raw files may fill several stores (a guest's and a host's). It fits the encoders on
the training rows and spills all rows to disk, in buckets by the first bits of their tags. Then each
bucket is sorted, encoded and written. Memory does not grow with the number of rows. It grows with
the number of distinct values in vocabularies, which is bounded, and with the number of threads. The
stores do not depend on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from celu.config.schema import SCHEMA_FILE, RawSchema, read_store_schema
from celu.data.folder import NewFolder
from celu.errors import ConfigError, DataError
from celu.prepare.encoders.categories import VocabularyBudget
from celu.prepare.new_store import NewStore, Report, fitted_store, unfitted_store
from celu.prepare.passes import (
    Progress,
    ScanSettings,
    check_labels,
    column_kinds,
    spill_rows,
    write_parts,
)
from celu.prepare.raw_file import RawFile
from celu.prepare.spill import Spill, buckets_for
from celu.threads import usable_cpus

__all__ = ["Progress", "Report", "Target", "prepare", "prepare_like"]


_CELL_BYTES = 8  # of text, on average
_MAX_THREADS = 8  # by default: more hardly help, and each holds tens of MiB of rows


class Target(NamedTuple):
    """A store to prepare: its schema, which declares its columns, and its folder."""

    schema: RawSchema
    out: Path


def _ignore(phase: str, done: int, total: int) -> None:
    pass


def prepare(
    sources: Sequence[Path],
    targets: Sequence[Target],
    progress: Progress = _ignore,
    *,
    replace: bool = False,
    threads: int | None = None,
) -> list[Report]:
    """Prepare stores from raw files, in one scan; they have `source`, `id` and `split` in common.

    With `replace`, an existing store is replaced, at the very end. By default there is a thread for
    each core, up to 8. Raises ConfigError or DataError, and then leaves nothing behind.
    """
    settings = [ScanSettings(s.source, s.id, s.split) for s, _ in targets]
    if any(other != settings[0] for other in settings):
        raise ConfigError("stores made in one scan must have the same source, id and split")
    budget = VocabularyBudget()
    stores = [unfitted_store(schema, out, budget) for schema, out in targets]
    return _prepare(sources, settings[0], stores, progress, replace, threads)


def prepare_like(
    sources: Sequence[Path],
    store: Path,
    out: Path,
    progress: Progress = _ignore,
    *,
    replace: bool = False,
    threads: int | None = None,
) -> Report:
    """Encode new rows with the encoders of an existing store; all become test rows of a new store.

    The raw files may lack the label column: the new rows then have no labels. Its
    schema has the digest of the existing store's. Raises as `prepare` does.
    """
    fitted = read_store_schema(store)
    names = [RawFile(path, fitted.source).names() for path in sources]
    labelled = any(fitted.label in columns for columns in names)
    settings = ScanSettings(fitted.source, fitted.id, fitted.split, all_test=True)
    new = fitted_store(fitted, out, labelled=labelled)
    return _prepare(sources, settings, [new], progress, replace, threads)[0]


def _prepare(
    sources: Sequence[Path],
    settings: ScanSettings,
    stores: Sequence[NewStore],
    progress: Progress,
    replace: bool,
    threads: int | None,
) -> list[Report]:
    threads = threads or min(usable_cpus(), _MAX_THREADS)
    if not sources:
        raise ConfigError("expected raw files, got none")
    files = [RawFile(path, settings.source) for path in sources]
    kinds = column_kinds(settings, stores)
    for file in files:
        file.check(kinds)
    source = str(sources[0]) + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
    with ExitStack() as stack:
        new_folders = [
            stack.enter_context(NewFolder(store.out, SCHEMA_FILE, replace=replace))
            for store in stores
        ]
        folders = [folder.path for folder in new_folders]
        text_bytes = sum(file.text_bytes(kinds) for file in files)
        # Lists of codes may take many times their text.
        about = text_bytes // (_CELL_BYTES * max(1, len(kinds)))
        list_bytes = about * sum(store.list_bytes() for store in stores)
        buckets = buckets_for(text_bytes + list_bytes)
        try:
            with Spill(folders[0] / "rows.spill", buckets) as spill:
                num_rows, id_warnings = spill_rows(
                    files, kinds, settings, stores, spill, progress, threads
                )
                if not settings.all_test:
                    check_labels(source, stores)
                rows = write_parts(
                    source, settings, stores, folders, spill, num_rows, progress, threads
                )
            for store, folder in zip(stores, folders, strict=True):
                store.schema(rows).write(folder)
            reports = [store.report(rows, id_warnings) for store in stores]
            for new_folder in new_folders:
                new_folder.publish()
        except OSError as error:
            raise DataError(
                f"{stores[0].out}: cannot be written: {error.strerror or error}"
            ) from error
    return reports

"""Records the end of a run in its folder: weights, scores, summary and more, or the failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from torch import nn

from celu.audit.result import AUDIT
from celu.checkpoint.disk import RealDisk
from celu.checkpoint.tensors import serialize_tensors
from celu.config.job import Job
from celu.config.replay import replay_toml
from celu.data.dataset import Dataset
from celu.data.tags import Tags
from celu.errors import CeluError, CheckpointError, ConfigError, DataError
from celu.events import Warned
from celu.label_map import LabelMap
from celu.model_identity import TRAINED, InputSpec, TrainedModel
from celu.party import Guest, Host
from celu.ranks.own_rows import sharded_names
from celu.ranks.slices import ONE, Slices
from celu.ranks.whole import whole_weights
from celu.result import Result
from celu.run_folder import SCORES, RunFolder
from celu.scores.file import ScoreWriter
from celu.serving.model_folder import WEIGHTS_FILE


def record_result(
    folder: RunFolder,
    job: Job,
    result: Result,
    party: Guest | Host,
    read_ids: Callable[[Tags], Any] | None = None,
    ranks: Slices = ONE,
) -> None:
    """Write the weights, the model's identity, scores, the choices of `auto` and the summary.

    `read_ids` returns the ids of held-out rows with these tags; without it they are numbered. The
    other `ranks` pass on their rows of sharded tables. Raises CheckpointError.
    """
    record_model(folder, result, party, ranks)
    if result.scores is not None:
        try:
            record_scores(folder, job, result, party.test, read_ids)
        except DataError as error:
            folder.emit(Warned(message=f"{SCORES} was not written: {error}"))
    if result.audit is not None:
        folder.write(AUDIT, result.audit.to_json())
    if result.choices:
        folder.write("replay.toml", replay_toml(job, result.choices))
    folder.finish(summary_of(result))


def summary_of(result: Result) -> dict[str, Any]:
    """A finished run's summary, for its folder."""
    facts = asdict(replace(result, scores=None, mean_z={}, audit=None))
    summary = {**facts, "choices": len(result.choices), "model": result.model.name}
    for name in ("mean_z", "scores", "label_map", "own_weights", "audit"):
        del summary[name]
    return {"status": "done", **summary}


def record_scores(
    folder: RunFolder,
    job: Job,
    result: Result,
    test: Dataset,
    read_ids: Callable[[Tags], Any] | None = None,
) -> None:
    """Write the scores of the held-out rows with their labels, as `celu evaluate` reads them.

    Rows that have weights leave these, too.

    Raises CheckpointError; DataError for scores that the file cannot hold.
    """
    held_out = result.scores
    if held_out is None or not held_out.has_one_per_row:
        raise DataError("expected one score, or one per class, for each label, got several labels")
    num_rows, multiclass = len(held_out), held_out.scores.ndim > 1
    ids: Any = [str(row) for row in range(num_rows)]
    if read_ids is not None and test.tags is not None:
        ids = read_ids(test.tags[:num_rows])
    with folder.atomic(SCORES) as partial:
        try:
            with ScoreWriter(
                partial,
                model=result.model.name,
                output=held_out.output,
                num_classes=held_out.scores.shape[1] if multiclass else None,
                classes=result.label_map.names,
                with_labels=True,
                with_weights=held_out.weights is not None,
            ) as file:
                hosts = [",".join(job.hosts)] * num_rows
                flags = np.zeros(num_rows, np.bool_)  # every host took part
                file.write(ids, held_out.scores, hosts, flags, held_out.labels, held_out.weights)
        except ConfigError as error:  # it names the temporary file
            raise CheckpointError(f"{folder.path / SCORES}: {error}") from error
        partial.chmod(0o600)


def record_model(
    folder: RunFolder, result: Result, party: Guest | Host, ranks: Slices = ONE
) -> None:
    """Write a party's weights, and what an export needs to know; raises CheckpointError."""
    train = party.train
    has_inputs = party.bottom is not None
    _save_weights(folder, modules_of(party), ranks)
    trained = TrainedModel(
        identity=result.model,
        inputs={n: InputSpec.of(rows) for n, rows in train.inputs.items() if has_inputs},
        sizes={n: [int(s) for s in sizes] for n, sizes in train.sizes.items() if has_inputs},
        output=party.loss.prediction if isinstance(party, Guest) else None,
        label_map=result.label_map if isinstance(party, Guest) else LabelMap(),
        mean_z=result.mean_z if isinstance(party, Guest) else {},
        own_weights=result.own_weights if isinstance(party, Guest) else None,
        train_rows=train.num_rows,
        validation_rows=0 if party.validation is None else party.validation.num_rows,
        test_rows=party.test.num_rows,
    )
    folder.write(TRAINED, trained.to_json())


def _save_weights(
    folder: RunFolder, modules: Mapping[str, nn.Module | None], ranks: Slices
) -> None:
    """Write the weights; sharded tables block by block, since no process has room for all."""
    if not sharded_names(modules):
        folder.save_weights(modules)
        return
    with folder.atomic(WEIGHTS_FILE) as partial:
        RealDisk().write(partial, serialize_tensors(whole_weights(modules, ranks)))


def modules_of(party: Guest | Host) -> dict[str, nn.Module | None]:
    """A party's modules by name."""
    return {"bottom": party.bottom, "top": party.top if isinstance(party, Guest) else None}


@contextmanager
def recording_failure(folders: Iterable[RunFolder]) -> Iterator[None]:
    """If the block raises, record the error as the end of these runs."""
    try:
        yield
    except BaseException as error:
        message = {"message": str(error)} if isinstance(error, CeluError) else {}
        for folder in folders:
            with suppress(CheckpointError):  # the first error is the one to report
                folder.finish({"status": type(error).__name__, **message})
        raise

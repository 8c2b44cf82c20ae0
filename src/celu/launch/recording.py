"""Records the end of a run in its folder: weights, `replay.toml`, summary, or the failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from celu.config.job import Job
from celu.config.replay import replay_toml
from celu.errors import CeluError, CheckpointError
from celu.model_identity import TRAINED, InputSpec, TrainedModel
from celu.party import Guest, Host
from celu.run_folder import RunFolder
from celu.session import Result


def record_result(folder: RunFolder, job: Job, result: Result, party: Guest | Host) -> None:
    """Write the weights, the model's identity, the choices of `auto` and the summary.

    Raises CheckpointError.
    """
    record_model(folder, result, party)
    if result.choices:
        folder.write("replay.toml", replay_toml(job, result.choices))
    folder.finish(summary_of(result))


def summary_of(result: Result) -> dict[str, Any]:
    """A finished run's summary, for its folder."""
    facts = asdict(replace(result, scores=None, mean_z={}))
    summary = {**facts, "choices": len(result.choices), "model": result.model.name}
    del summary["mean_z"], summary["scores"]
    return {"status": "done", **summary}


def record_model(folder: RunFolder, result: Result, party: Guest | Host) -> None:
    """Write a party's weights, and what an export needs to know; raises CheckpointError."""
    train = party.train
    has_inputs = party.bottom is not None
    folder.save_weights(modules_of(party))
    trained = TrainedModel(
        identity=result.model,
        inputs={n: InputSpec.of(rows) for n, rows in train.inputs.items() if has_inputs},
        sizes={n: [int(s) for s in sizes] for n, sizes in train.sizes.items() if has_inputs},
        output=party.loss.prediction if isinstance(party, Guest) else None,
        mean_z=result.mean_z if isinstance(party, Guest) else {},
        train_rows=train.num_rows,
        test_rows=party.test.num_rows,
    )
    folder.write(TRAINED, trained.to_json())


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

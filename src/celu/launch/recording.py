"""Records the end of a run in its folder: weights, `replay.toml`, summary, or the failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict

from torch import nn

from celu.config.job import Job
from celu.config.replay import replay_toml
from celu.errors import CeluError, CheckpointError
from celu.run_folder import RunFolder
from celu.session import Result


def record_result(
    folder: RunFolder, job: Job, result: Result, modules: Mapping[str, nn.Module | None]
) -> None:
    """Write the trained weights, the choices of `auto` and the summary; raises CheckpointError."""
    folder.save_weights(modules)
    if result.choices:
        folder.write("replay.toml", replay_toml(job, result.choices))
    folder.finish({"status": "done", **asdict(result), "choices": len(result.choices)})


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

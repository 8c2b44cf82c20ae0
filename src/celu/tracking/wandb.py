"""Weights & Biases: offline files in `wandb/` of the folder.

It contacts no server unless WANDB_MODE=online is in the environment; `wandb sync` uploads the files
later. Nothing is written but metrics, the contract and the party's name: no code, no console
output, no description of the machine.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celu.errors import ConfigError
from celu.tracking.run_id import read_run_id, write_run_id

if TYPE_CHECKING:
    from wandb import Run

FOLDER = "wandb"  # wandb adds it to the folder that it is given


class WeightsAndBiases:
    """Writes W&B's files; see `Backend`. Raises ConfigError if the package is missing."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at its import
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "tracking: the package wandb is not installed; "
                'install it with: pip install "celu[wandb]"'
            ) from error
        self._wandb = wandb
        self._folder = folder
        self._name = name
        self._settings = settings
        self._run: Run | None = None

    def open(self, round_: int) -> None:
        """See `Backend`."""
        if self._run is not None:
            return
        run_id = read_run_id(self._folder / FOLDER)
        if run_id is None:
            run_id = secrets.token_hex(8)
            write_run_id(self._folder / FOLDER, run_id)
        self._run = self._wandb.init(
            mode=_mode(),
            dir=self._folder,
            project=os.environ.get("WANDB_PROJECT") or "celu",
            id=run_id,
            name=self._name,
            config=dict(self._settings),
            resume="allow",
            reinit="create_new",  # several parties in one process have a run each
            settings=self._wandb.Settings(
                silent=True,
                host=self._name,
                console="off",
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        # Not W&B's own step, which cannot go back: a resumed run repeats rounds.
        self._run.define_metric("*", step_metric="round")

    def write(self, scalars: Mapping[str, float], round_: int) -> None:
        """See `Backend`; repeated rounds are written again."""
        assert self._run is not None  # opened when training starts
        self._run.log({**scalars, "round": round_})

    def close(self, succeeded: bool) -> None:
        """See `Backend`."""
        assert self._run is not None
        self._run.finish(exit_code=0 if succeeded else 1)


def _mode() -> Any:
    """Offline, unless the user's environment says otherwise."""
    return os.environ.get("WANDB_MODE") or "offline"

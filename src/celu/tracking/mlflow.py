"""MLflow: a database in `mlflow/` of the folder, or the server that MLFLOW_TRACKING_URI names.

It uses the small client (`mlflow-skinny`). Nothing is uploaded but metrics, the contract and the
party's name. MLflow's own usage statistics are off, unless the environment turns them on.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celu.errors import ConfigError
from celu.tracking.run_id import read_run_id, write_run_id

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

FOLDER = "mlflow"
DATABASE = "mlflow.db"
_MAX_PARAMS = 100  # of one request, by MLflow's limits
_MAX_VALUE = 500  # characters of a parameter, which every release accepts


class MLflow:
    """Writes to MLflow; see `Backend`. Raises ConfigError if a package is missing."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read at its import
        try:
            import mlflow.tracking
            import sqlalchemy  # noqa: F401 - what the local database needs
        except ImportError as error:
            raise ConfigError(
                f"tracking: the package {error.name} is not installed; "
                'install it with: pip install "celu[mlflow]"'
            ) from error
        for logger in ("mlflow", "alembic"):  # they print how they create the database
            logging.getLogger(logger).setLevel(logging.WARNING)
        self._mlflow = mlflow
        self._folder = folder / FOLDER
        self._name = name
        self._settings = settings
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._is_continued = False
        self._last_rounds: dict[str, int] = {}  # by metric, of earlier attempts

    def open(self, round_: int) -> None:
        """See `Backend`."""
        if self._client is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            local = f"sqlite:///{self._folder / DATABASE}"
            self._client = self._mlflow.tracking.MlflowClient(
                os.environ.get("MLFLOW_TRACKING_URI") or local
            )
        known = read_run_id(self._folder)
        self._is_continued = known is not None and self._exists(known)
        self._last_rounds.clear()
        if known is not None and self._is_continued:
            self._run_id = known
            self._client.update_run(self._run_id, status="RUNNING")
            return
        run = self._client.create_run(self._experiment(), run_name=self._name)
        self._run_id = run.info.run_id
        write_run_id(self._folder, self._run_id)
        params = [
            self._mlflow.entities.Param(key, str(value)[:_MAX_VALUE])
            for key, value in self._settings.items()
        ]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + _MAX_PARAMS])

    def write(self, scalars: Mapping[str, float], round_: int) -> None:
        """See `Backend`; a round that an earlier attempt wrote stays as it is."""
        assert self._client is not None  # opened when training starts
        now_ms = int(time.time() * 1000)
        metrics = [
            self._mlflow.entities.Metric(key, value, now_ms, round_)
            for key, value in ((_metric_name(n), v) for n, v in scalars.items())
            if round_ > self._last_round(key)
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, succeeded: bool) -> None:
        """See `Backend`."""
        assert self._client is not None
        self._client.set_terminated(self._run_id, "FINISHED" if succeeded else "FAILED")

    def _experiment(self) -> str:
        assert self._client is not None
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "celu"
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # A server decides itself where artifacts go; a local database would use the work folder.
        is_local = not os.environ.get("MLFLOW_TRACKING_URI")
        location = (self._folder / "artifacts").as_uri() if is_local else None
        return self._client.create_experiment(name, artifact_location=location)

    def _exists(self, run_id: str) -> bool:
        assert self._client is not None
        try:
            self._client.get_run(run_id)
        except self._mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False  # another server than in the earlier attempt
        return True

    def _last_round(self, key: str) -> int:
        """The last round of a metric that an earlier attempt wrote: MLflow cannot replace it."""
        assert self._client is not None
        if not self._is_continued:
            return -1
        if key not in self._last_rounds:
            history = self._client.get_metric_history(self._run_id, key)
            self._last_rounds[key] = max((metric.step for metric in history), default=-1)
        return self._last_rounds[key]


def _metric_name(name: str) -> str:
    """A name with only the characters that MLflow accepts: similarity/50% becomes similarity/50."""
    return re.sub(r"[^\w\-. :/]", "", name)

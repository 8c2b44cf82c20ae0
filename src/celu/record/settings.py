"""The settings in a run folder that readers use; any other setting is shown as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from celu.config.reading import describe
from celu.errors import ConfigError


class _Known(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _Method(_Known):
    auto: bool = False
    W: float | dict[str, float] = 1
    R: float | dict[str, float] = 1
    depth: float = 1


class _Evaluation(_Known):
    metric: str = "loss"


class _Job(_Known):
    guest: str = "guest"
    hosts: dict[str, dict[str, Any]] = {}
    method: _Method = _Method()
    evaluation: _Evaluation = _Evaluation()


class _Party(_Known):
    name: str = ""
    outage_s: float = 600.0


class _Settings(_Known):
    job: _Job = _Job()
    party: _Party = _Party()
    simulated: dict[str, Any] = {}
    versions: dict[str, str] = {}


def check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Raise ConfigError, with the key, unless the settings are as celu writes them."""
    try:
        _Settings.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(f"{path}: {describe(error)[0]}; was the file edited?") from error

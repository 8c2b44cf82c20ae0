"""`space.toml`: the settings of a contract that `celu tune` varies, and the values that it tries.

optimizer.lr = { low = 0.001, high = 0.3, log = true }   # a range
method.R.guest = [1, 3, 5]                               # some values
optimizer = [{ name = "adam", lr = 0.001 }, { name = "sgd", lr = 0.1, momentum = 0.9 }]

It does not choose values: see `celu.search`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import model_validator

from celu.config.job import Job
from celu.config.reading import Settings, read_toml, validate
from celu.errors import ConfigError

# Settings that no trial may change: who takes part, and how trials are compared.
FIXED = ("preset", "seed", "guest", "choices", "evaluation", "checkpoint")
_RANGE = {"low", "high", "log", "step"}


class Range(Settings):
    """Numbers from `low` to `high`: integers if both are, otherwise floats.

    With `log`, small values are tried as often as large ones. `step` is the distance of values.
    """

    low: int | float
    """The least value; if low and high are integers, so are the values."""
    high: int | float
    """The greatest value."""
    log: bool = False
    """Whether small values are tried as often as large ones."""
    step: int | float | None = None
    """The distance between two values; by default any value is possible."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"expected low below high, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: expected more than 0 with log = true, got {self.low}")
        if self.step is not None and (self.log or self.step <= 0):
            raise ValueError(f"step: expected more than 0 and no log, got {self.step}")
        if self.is_integer and isinstance(self.step, float):
            raise ValueError(f"step: expected an integer between integers, got {self.step}")
        return self

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def examples(self) -> list[Any]:
        """The values at both ends."""
        return [self.low, self.high]


@dataclass(frozen=True)
class Values:
    """Values to choose from, of any type that the setting has."""

    values: tuple[Any, ...]

    @property
    def examples(self) -> list[Any]:
        """All values."""
        return list(self.values)


Dimension = Range | Values


@dataclass(frozen=True)
class Space:
    """The dimensions of a search, by the dotted name of their setting."""

    dimensions: dict[str, Dimension]

    def apply(self, job: Job, values: Mapping[str, Any]) -> Job:
        """The job with these values, by dotted name; raises ConfigError if they do not fit."""
        given = job.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        complete = job.model_dump(mode="json", exclude_none=True)
        for name, value in values.items():
            *path, last = name.split(".")
            place, defaults = given, complete
            for key in path:
                defaults = _table(defaults, key)
                # A setting with several values, such as method.R, is given as a whole.
                place = place.setdefault(key, dict(defaults))
                if not isinstance(place, dict):
                    raise ConfigError(f"{name}: expected no such key; {key} is not a table")
            place[last] = value
        return Job(**given)

    def to_dict(self) -> dict[str, Any]:
        """The space as plain values, to compare it with another."""
        return {
            name: d.model_dump() if isinstance(d, Range) else list(d.values)
            for name, d in self.dimensions.items()
        }


def _table(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key, {})
    return found if isinstance(found, dict) else {}


def read_space(path: Path, job: Job) -> Space:
    """Read a space, and check every name and value against the job; raises ConfigError."""
    dimensions: dict[str, Dimension] = {}
    for name, value in _settings(read_toml(path), path):
        if name in dimensions:
            raise ConfigError(f"{path}: {name}: expected it once, got it twice")
        dimensions[name] = _dimension(name, value, path)
    if not dimensions:
        raise ConfigError(f"{path}: expected settings to vary, got none")
    for name in dimensions:
        if name.partition(".")[0] in FIXED:
            raise ConfigError(f"{path}: {name}: expected a setting that trials may vary")
        inner = next((other for other in dimensions if other.startswith(f"{name}.")), None)
        if inner is not None:
            raise ConfigError(f"{path}: {inner}: expected it only once, got {name} as well")
    space = Space(dimensions)
    for name, dimension in dimensions.items():
        for value in dimension.examples:
            _check(space, job, name, value, path)
    return space


def _settings(values: Mapping[str, Any], path: Path, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every range and list of a file, by dotted name."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not _RANGE & value.keys():
            yield from _settings(value, path, f"{name}.")
        else:
            yield name, value


def _dimension(name: str, value: Any, path: Path) -> Dimension:
    if isinstance(value, Mapping):
        try:
            return validate(Range, dict(value), path)
        except ConfigError as error:
            text = str(error).replace(f"{path}: ", f"{path}: {name}: ")
            raise ConfigError(text) from error
    if isinstance(value, list) and value:
        if len({json.dumps(v, sort_keys=True, default=str) for v in value}) < len(value):
            raise ConfigError(f"{path}: {name}: expected distinct values, got {value}")
        return Values(tuple(value))
    raise ConfigError(
        f"{path}: {name}: expected a list of values, or a range such as "
        f"{{ low = 0.001, high = 0.1, log = true }}, got {value!r}"
    )


def _check(space: Space, job: Job, name: str, value: Any, path: Path) -> None:
    """Raise ConfigError if a contract does not have this setting, or not with this value."""
    try:
        hosts = set(space.apply(job, {name: value}).hosts)
        if hosts != set(job.hosts):
            given, known = (", ".join(sorted(names)) for names in (hosts, job.hosts))
            raise ConfigError(f"{name}: expected the hosts of the contract ({known}), got {given}")
    except ConfigError as error:
        text = "\n".join(f"{path}: {line}" for line in str(error).splitlines())
        raise ConfigError(text) from error

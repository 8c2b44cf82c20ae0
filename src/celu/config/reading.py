"""Read a settings file: TOML in, a frozen typed value out, or an error that names the key.

Nothing else is read: no environment variables, no other files. `read_json` reads what celu wrote.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from celu.errors import CeluError, ConfigError

# A party's name appears in certificates as a DNS name, so it must be a valid one.
PARTY_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
PartyName = Annotated[str, Field(pattern=PARTY_NAME)]


class Settings(BaseModel):
    """Base of all settings: frozen; unknown keys and wrong types are refused.

    TOML has inf and nan; no setting accepts them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _relative_to_file(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and "\0" in value:
        raise ValueError("expected a path, got one with a NUL in it")
    folder = (info.context or {}).get("folder", Path())
    return folder / value if isinstance(value, str) else value


FilePath = Annotated[Path, BeforeValidator(_relative_to_file)]


def _has_a_port(address: str) -> str:
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:]+):(\d{1,5})", address)
    if not found or int(found[2]) > 65535:
        raise ValueError(f"expected HOST:PORT with a port up to 65535, got {address!r}")
    return address


Address = Annotated[str, AfterValidator(_has_a_port)]

_MAX_JSON_BYTES = 64 << 20
_PROBLEMS_SHOWN = 5

_T = TypeVar("_T", bound=Settings)
_M = TypeVar("_M", bound=BaseModel)


def read_settings(model: type[_T], path: Path) -> _T:
    """Read and validate a TOML file; raises ConfigError with file, key, expected and got.

    Relative paths in the file are relative to its folder.
    """
    return validate(model, read_toml(path), path)


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file; raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable file, got: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also: a number too long, a table too deep
        raise ConfigError(f"{path}: expected TOML, got: {error}") from error


def read_json(
    model: type[_M],
    path: Path,
    what: str,
    if_missing: str,
    failure: type[CeluError] = ConfigError,
) -> _M:
    """Read and validate a JSON file that celu wrote; `what` it holds, such as "an alignment".

    Raises `failure` for a file that cannot be read, with what to do then, for one that is too
    large, and for a damaged one, with its problems.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_JSON_BYTES + 1)
    except OSError as error:
        raise failure(
            f"{path}: expected {what}, got: {error.strerror or error}; {if_missing}"
        ) from error
    if len(content) > _MAX_JSON_BYTES:
        raise failure(f"{path}: expected {what} of at most {_MAX_JSON_BYTES:,} bytes, got more")
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        problems = describe(error)
        shown = "; ".join(problems[:_PROBLEMS_SHOWN])
        if len(problems) > _PROBLEMS_SHOWN:
            shown += f"; and {len(problems) - _PROBLEMS_SHOWN:,} more"
        raise failure(
            f"{path}: expected {what}, got: {shown}; was the file edited or damaged?"
        ) from error


def validate(model: type[_T], values: dict[str, Any], path: Path) -> _T:
    """Check values that came from `path`; raises ConfigError as `read_settings` does."""
    try:
        return model.model_validate(values, context={"folder": path.parent})
    except ValidationError as error:
        raise ConfigError(
            "\n".join(f"{path}: {line}" for line in describe(error, model))
        ) from error
    except ConfigError as error:  # from a model that reports its fields itself
        lines = str(error).splitlines()
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from error


def describe(error: ValidationError, model: type[BaseModel] | None = None) -> list[str]:
    """One line for each problem: key, expected, got; for an unknown key, those of `model`."""
    lines = []
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        expected = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            section = ".".join(str(part) for part in problem["loc"][:-1])
            where = f"[{section}]" if section else "the top of the file"
            expected = f"expected a value, got nothing; add it to {where}"
        elif problem["type"] == "extra_forbidden":
            expected = f"expected no such key; {_next_step(model, problem['loc'])}"
        elif problem["type"] == "json_invalid":
            pass  # its input is the whole file
        elif problem["type"] != "value_error":
            expected = re.sub(r"^\w+ should be", "expected", expected)
            expected = re.sub(r"^\w+ should", "expected to", expected)
            expected = f"{expected}, got {problem['input']!r}"
        lines.append(f"{key}: {expected}" if key else expected)
    return lines


def _next_step(model: type[BaseModel] | None, location: Sequence[int | str]) -> str:
    """What to write instead of an unknown key."""
    *section, key = map(str, location)
    for part in section:
        if model is not None and part in model.model_fields:  # else a name, such as a peer's
            model = _settings_in(model.model_fields[part].annotation)
    if model is None:
        return "remove it"
    known = list(model.model_fields)
    if close := difflib.get_close_matches(key, known, 1, cutoff=0.75):
        return f"did you mean {close[0]}?"
    for name, field in model.model_fields.items():
        inner = _settings_in(field.annotation)
        if inner is not None and key in inner.model_fields:
            return f"did you mean {key} in [{'.'.join([*section, name])}]?"
    return f"the keys here are {', '.join(known)}"


def _settings_in(annotation: Any) -> type[BaseModel] | None:
    """The settings inside the type of a key, if any: of a table, or of each entry of one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_settings_in, get_args(annotation))), None)

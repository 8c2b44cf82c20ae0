"""The contract (`job.toml`): all parties hold it in the same form and compare it when they meet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from celu.config.reading import PartyName, Settings, read_settings

Role = Literal["guest", "host"]


def _role_pair(value: Any) -> Any:
    return value if isinstance(value, Mapping | BaseModel) else {"guest": value, "host": value}


class IntByRole(Settings):
    """A count for each role; one number in the file means the same for both."""

    guest: PositiveInt
    host: PositiveInt


class DegreesByRole(Settings):
    """An angle in degrees for each role; one number in the file means the same for both."""

    guest: Annotated[float, Field(gt=0, le=180)]
    host: Annotated[float, Field(gt=0, le=180)]


if TYPE_CHECKING:  # what a caller may write; at run time it is always turned into a pair
    RoleInts = int | Mapping[str, int] | IntByRole
    RoleDegrees = float | Mapping[str, float] | DegreesByRole
else:
    RoleInts = Annotated[IntByRole, BeforeValidator(_role_pair)]
    RoleDegrees = Annotated[DegreesByRole, BeforeValidator(_role_pair)]


class Method(Settings):
    """The algorithm: R=1 is vanilla VFL, W=1 without weighting is FedBCD, else CELU.

    R counts all updates made from a batch, the exchanged one included. W is the capacity of the
    workset table. xi is the angle, in degrees, beyond which a stale instance counts for nothing.
    Each is one value for all, as in the paper, or one for each role. `depth` is the number of
    rounds in flight. `sampling` and `weighting` name policies, built in or "module:Class".
    """

    W: RoleInts = IntByRole(guest=5, host=5)
    R: RoleInts = IntByRole(guest=3, host=1)
    xi: RoleDegrees = DegreesByRole(guest=60, host=60)
    depth: PositiveInt = 1
    sampling: str = "round-robin"
    weighting: str = "cosine"

    def for_role(self, role: Role) -> RoleMethod:
        """W, R and xi of one role."""
        return RoleMethod(*(getattr(pair, role) for pair in (self.W, self.R, self.xi)))


class RoleMethod(NamedTuple):
    """The part of a method that one role keeps to."""

    W: int
    R: int
    xi: float


class Optimizer(Settings):
    """One optimizer for all parties; options that the named optimizer lacks are refused."""

    name: Literal["adagrad", "sgd", "adam"] = "adagrad"
    lr: PositiveFloat = 0.03
    initial_accumulator: Annotated[float, Field(ge=0)] | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _option_belongs_to_optimizer(self) -> Optimizer:
        if self.initial_accumulator is not None and self.name != "adagrad":
            raise ValueError(f"initial_accumulator is an option of adagrad, not of {self.name}")
        if self.momentum is not None and self.name != "sgd":
            raise ValueError(f"momentum is an option of sgd, not of {self.name}")
        return self


class Evaluation(Settings):
    """Held-out evaluation across parties: every `every` rounds, on the first `rows` test rows.

    Training stops early where `metric` reaches `target`.
    """

    every: PositiveInt = 100
    rows: PositiveInt | None = None
    metric: Literal["auc", "loss", "accuracy", "rmse"] = "auc"
    target: float | None = None


class Order(Settings):
    """How each epoch shuffles: all rows, or, for rows that do not fit in memory, in blocks.

    By blocks, `window_blocks` blocks of `block_rows` consecutive rows are in memory at a time and
    shuffled together. It holds for all parties, so whoever needs it asks for it.
    """

    shuffle: Literal["rows", "blocks"] = "rows"
    block_rows: PositiveInt = 8192
    window_blocks: PositiveInt = 64


def _one_codec(value: Any) -> Any:
    kinds = ("activation", "derivative", "evaluation")
    return dict.fromkeys(kinds, value) if isinstance(value, str) else value


class Codecs(Settings):
    """How Z and dZ become bytes in each direction: fp32, bf16, fp16, int8, 4bit, 2bit.

    "+zstd" behind a name compresses as well. One name in the file means the same for all.
    """

    activation: str = "fp32"  # Z, host to guest
    derivative: str = "fp32"  # dZ, guest to host
    evaluation: str = "fp32"  # Z of held-out rows, host to guest


if TYPE_CHECKING:
    AnyCodecs = str | Mapping[str, str] | Codecs
else:
    AnyCodecs = Annotated[Codecs, BeforeValidator(_one_codec)]


class HostTerms(Settings):
    """What the contract fixes about one host: the width of its Z (the paper's, unless given)."""

    z_width: PositiveInt = 256


PRESETS: dict[str, dict[str, Any]] = {
    # AdaGrad with the accumulator at zero, and the guest alone re-using what is cached: the
    # strongest settings known that hold across the data sets measured.
    "strong": {},
    # The protocol of the paper's section 5.1, with the constants its text leaves out.
    "paper": {
        "batch_size": 4096,
        "method": {"W": 5, "R": 5, "xi": 60.0},
        "optimizer": {"name": "adagrad", "lr": 0.05, "initial_accumulator": 0.1},
    },
}


class Job(Settings):
    """The contract (`job.toml`): everything the parties must agree on before they train."""

    preset: Literal["strong", "paper"] = "strong"
    seed: Annotated[int, Field(ge=0)] = 1
    batch_size: PositiveInt = 1024
    rounds: PositiveInt | None = None
    epochs: PositiveInt | None = None
    guest: PartyName = "guest"
    hosts: dict[PartyName, HostTerms]
    order: Order = Order()
    codec: AnyCodecs = Codecs()
    method: Method = Method()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("preset"), str):
            return data
        preset = PRESETS.get(data["preset"], {})
        optimizer, own = data.get("optimizer"), preset.get("optimizer", {}).get("name")
        if isinstance(optimizer, Mapping) and optimizer.get("name", own) != own:
            # Another optimizer: neither the preset's rate nor its options mean anything to it.
            preset = {key: value for key, value in preset.items() if key != "optimizer"}
        return _merge(preset, data)

    @model_validator(mode="after")
    def _one_length_and_distinct_names(self) -> Job:
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError("exactly one of rounds and epochs must be given")
        if self.guest in self.hosts:
            raise ValueError(f"guest and host share the name {self.guest!r}")
        return self

    def num_rounds(self, rounds_per_epoch: int) -> int:
        """The length of the run, once the number of rows is known."""
        return self.rounds if self.rounds is not None else (self.epochs or 0) * rounds_per_epoch

    def contract(self) -> dict[str, Any]:
        """Every field by its dotted name, as compared in the handshake."""
        return _flatten(self.model_dump())


def read_job(path: Path) -> Job:
    """Read and validate a contract; raises ConfigError."""
    return read_settings(Job, path)


def _merge(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **given}
    for key, value in defaults.items():
        if isinstance(value, Mapping) and isinstance(given.get(key), Mapping):
            merged[key] = _merge(value, given[key])
    return merged


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat

"""The contract (`job.toml`): all parties hold it in the same form and compare it when they meet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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


class Tuning(Settings):
    """What may change in the course of a run; `Method` and `Codecs` say what each means."""

    W: RoleInts
    R: RoleInts
    depth: PositiveInt
    codec: AnyCodecs

    def for_role(self, role: Role) -> tuple[int, int]:
        """W and R of one role."""
        return getattr(self.W, role), getattr(self.R, role)

    @property
    def codecs(self) -> Codecs:
        """The codecs, by their type: whatever was written became one."""
        assert isinstance(self.codec, Codecs)
        return self.codec


class Choice(Tuning):
    """What holds from a round on, and why: written by hand, or by a run that chose for itself."""

    round: Annotated[int, Field(ge=0)]
    reason: str = ""


class Method(Settings):
    """The algorithm: R=1 is vanilla VFL, W=1 without weighting is FedBCD, else CELU.

    R counts all updates made from a batch, the exchanged one included. W is the capacity of the
    workset table. xi is the angle, in degrees, beyond which a stale instance counts for nothing.
    Each is one value for all, as in the paper, or one for each role. `depth` is the number of
    rounds in flight. `sampling` and `weighting` name policies, built in or "module:Class".

    With `auto`, the guest chooses W, R, depth and codec while it trains, by what it measures; those
    that are written down stay as they are written. `method = "auto"` alone leaves it all of them.
    """

    auto: bool = False
    W: RoleInts = IntByRole(guest=5, host=5)
    R: RoleInts = IntByRole(guest=3, host=1)
    xi: RoleDegrees = DegreesByRole(guest=60, host=60)
    depth: PositiveInt = 1
    sampling: str = "round-robin"
    weighting: str = "cosine"

    def xi_of(self, role: Role) -> float:
        """The angle of one role."""
        degrees: float = getattr(self.xi, role)
        return degrees


def _auto_alone(value: Any) -> Any:
    return {"auto": True} if value == "auto" else value


if TYPE_CHECKING:
    AnyMethod = Method
else:
    AnyMethod = Annotated[Method, BeforeValidator(_auto_alone)]


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


class Checkpoint(Settings):
    """A checkpoint every `every` rounds, at all parties; by default as often as evaluations."""

    every: PositiveInt | None = None


class Order(Settings):
    """How each epoch shuffles: all rows, or, for rows that do not fit in memory, in blocks.

    By blocks, `window_blocks` blocks of `block_rows` consecutive rows are in memory at a time and
    shuffled together. It holds for all parties, so whoever needs it asks for it.
    """

    shuffle: Literal["rows", "blocks"] = "rows"
    block_rows: PositiveInt = 8192
    window_blocks: PositiveInt = 64


class HostTerms(Settings):
    """What the contract fixes about one host: the width of its Z (the paper's, unless given)."""

    z_width: PositiveInt = 256


def _width_alone(value: Any) -> Any:
    """`hosts={"weather": 64}` is short for `hosts={"weather": HostTerms(z_width=64)}`."""
    is_width = isinstance(value, int) and not isinstance(value, bool)
    return {"z_width": value} if is_width else value


AnyHostTerms = Annotated[HostTerms, BeforeValidator(_width_alone)]


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
    hosts: dict[PartyName, AnyHostTerms]
    order: Order = Order()
    codec: AnyCodecs = Codecs()
    method: AnyMethod = Method()
    choices: list[Choice] = []
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()

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
        method = data.get("method")
        if method == "auto" or (isinstance(method, Mapping) and method.get("auto") is True):
            # A preset's W and R are nobody's wish where the run is to choose them.
            preset = {key: value for key, value in preset.items() if key != "method"}
        return _merge(preset, data)

    @model_validator(mode="after")
    def _one_length_and_distinct_names(self) -> Job:
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError("exactly one of rounds and epochs must be given")
        if self.guest in self.hosts:
            raise ValueError(f"guest and host share the name {self.guest!r}")
        return self

    @model_validator(mode="after")
    def _choices_in_order(self) -> Job:
        rounds = [choice.round for choice in self.choices]
        if rounds and (rounds[0] != 0 or rounds != sorted(set(rounds))):
            raise ValueError(f"choices: expected rounds that ascend from 0, got {rounds}")
        if rounds and self.auto:
            raise ValueError("choices: expected none where method is auto; leave one of them out")
        return self

    @property
    def auto(self) -> bool:
        """Whether the guest chooses while it trains."""
        return self.method.auto

    def tuning(self) -> Tuning:
        """What holds where no choice says otherwise."""
        method = self.method
        return Tuning(W=method.W, R=method.R, depth=method.depth, codec=self.codec)

    def given(self) -> set[str]:
        """The fields of a tuning that somebody wrote down: no choice may touch them."""
        fields = self.method.model_fields_set | (self.model_fields_set & {"codec"})
        return fields & set(Tuning.model_fields)

    def num_rounds(self, rounds_per_epoch: int) -> int:
        """The length of the run, once the number of rows is known."""
        return self.rounds if self.rounds is not None else (self.epochs or 0) * rounds_per_epoch

    @property
    def checkpoint_every(self) -> int:
        """So many rounds lie between two checkpoints."""
        return self.checkpoint.every or self.evaluation.every

    @property
    def most_depth(self) -> int:
        """The most rounds that may be in flight, where they are written down."""
        return max([self.method.depth, *(choice.depth for choice in self.choices)])

    def contract(self) -> dict[str, Any]:
        """Every field by its dotted name, as compared in the handshake."""
        flat = _flatten(self.model_dump(exclude={"choices"}))
        chosen = [_flatten(choice.model_dump(exclude={"reason"})) for choice in self.choices]
        # There may be hundreds, so they are compared as one.
        flat["choices"] = hashlib.sha256(json.dumps(chosen).encode()).hexdigest() if chosen else ""
        flat["checkpoint.every"] = self.checkpoint_every
        flat["method.given"] = " ".join(sorted(self.given())) if self.auto else ""
        return flat


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

"""The job (`job.toml`): the contract that all parties hold and compare when they connect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)

from celu.config.optimizer import Optimizer
from celu.config.privacy import Privacy
from celu.config.reading import PartyName, Settings, describe, read_settings
from celu.errors import ConfigError

Role = Literal["guest", "host"]


def _role_pair(value: Any) -> Any:
    return value if isinstance(value, Mapping | BaseModel) else {"guest": value, "host": value}


class IntByRole(Settings):
    """A count for each role; one number in the file applies to both."""

    guest: PositiveInt
    host: PositiveInt


class DegreesByRole(Settings):
    """An angle in degrees for each role; one number in the file applies to both."""

    guest: Annotated[float, Field(gt=0, le=180)]
    host: Annotated[float, Field(gt=0, le=180)]


if TYPE_CHECKING:  # what a caller may write; at run time it always becomes a pair
    RoleInts = int | Mapping[str, int] | IntByRole
    RoleDegrees = float | Mapping[str, float] | DegreesByRole
else:
    RoleInts = Annotated[IntByRole, BeforeValidator(_role_pair)]
    RoleDegrees = Annotated[DegreesByRole, BeforeValidator(_role_pair)]


def _one_codec(value: Any) -> Any:
    kinds = ("activation", "derivative", "evaluation")
    return dict.fromkeys(kinds, value) if isinstance(value, str) else value


class Codecs(Settings):
    """How Z and dZ are encoded in each direction: fp32, bf16, fp16, int8, 4bit, 2bit.

    "+zstd" after a name adds lossless compression. One name in the file applies to all three.
    """

    activation: str = "fp32"
    """Of Z, from host to guest."""
    derivative: str = "fp32"
    """Of dZ, from guest to host."""
    evaluation: str = "fp32"
    """Of Z of held-out rows, from host to guest."""


if TYPE_CHECKING:
    AnyCodecs = str | Mapping[str, str] | Codecs
else:
    AnyCodecs = Annotated[Codecs, BeforeValidator(_one_codec)]


# Rounds in flight. The buffers of links hold that many messages (`transport.delivery`, `memory`).
MAX_DEPTH = 64
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH)]


class Tuning(Settings):
    """The settings that may change during a run; `Method` and `Codecs` explain them."""

    W: RoleInts
    """Batches in the workset table."""
    R: RoleInts
    """Updates from each batch, the exchanged one included."""
    depth: Depth
    """Rounds in flight."""
    codec: AnyCodecs
    """How Z and dZ are encoded."""

    def for_role(self, role: Role) -> tuple[int, int]:
        """W and R of one role."""
        return getattr(self.W, role), getattr(self.R, role)

    @property
    def codecs(self) -> Codecs:
        """The codecs, with their type: validation always makes `codec` a `Codecs`."""
        assert isinstance(self.codec, Codecs)
        return self.codec


class Choice(Tuning):
    """A tuning from a round on, with its reason: written by a user, or by `method = "auto"`."""

    round: Annotated[int, Field(ge=0)]
    """The first round of this choice; that of the first one is 0."""
    reason: str = ""
    """Why; it changes nothing."""


class Method(Settings):
    """The algorithm: R=1 is vanilla VFL, W=1 without weighting is FedBCD, else CELU.

    R counts all updates made from a batch, the exchanged one included. W is the capacity of the
    workset table. xi is the angle, in degrees, beyond which a stale instance gets weight 0; above
    90 degrees weights are negative, so instances between 90 and xi are un-learned.
    Each is one value for both roles, as in the paper, or one per role. `depth` is the number of
    rounds in flight. `sampling` names a policy: "round-robin" or "module:Class". So does
    `weighting`: "cosine" weights stale instances by similarity; "compensated" corrects a host's
    stale derivatives for how far Z has moved, and is "cosine" at the guest; "none" does neither.

    `local_step_order`: "overlapped" makes a round's local steps before its exchanged update, while
    messages are in flight; "after-update" makes them after it, as the paper prints algorithm 1, so
    the link is idle meanwhile. Without local steps (R=1) both are the same.

    With `auto`, the guest measures, and chooses W, R, depth and codec while it trains. It does
    not change a value that is given; `method = "auto"` alone lets it choose all of them.
    """

    auto: bool = False
    """Whether the guest measures and chooses W, R, depth and codec while it trains."""
    W: RoleInts = IntByRole(guest=5, host=5)
    """Batches in the workset table."""
    R: RoleInts = IntByRole(guest=3, host=1)
    """Updates from each batch, the exchanged one included; 1: no local steps."""
    xi: RoleDegrees = DegreesByRole(guest=60, host=60)
    """The angle beyond which a stale row has weight 0."""
    depth: Depth = 1
    """Rounds in flight, at most 64."""
    sampling: str = "round-robin"
    """Which cached batch is used next: "round-robin", or "module:Class"."""
    weighting: str = "compensated"
    """What is done with stale rows: "compensated", "cosine", "none" or "module:Class"."""
    local_step_order: Literal["overlapped", "after-update"] = "overlapped"
    """Whether local steps are made while messages are in flight, or after the update."""

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


def _is_a_name(name: str) -> str:
    if not name.isidentifier() or len(name) > 64:
        raise ValueError(f"expected the name of a metric, such as auc, got {name[:64]!r}")
    return name


class Evaluation(Settings):
    """Held-out evaluation across parties: every `every` rounds, on the first `rows` rows.

    They are validation rows where the parties have any, otherwise test rows. `metric` is the loss,
    a built-in metric that fits the guest's loss, or the name of a metric of the guest's own.
    Training stops when it reaches `target`, or after `patience` evaluations without an improvement.
    With validation rows the result is the model of the best evaluation, and all test rows are
    scored once, at the end. `patience` needs validation rows.
    """

    every: PositiveInt = 100
    """Rounds between two evaluations."""
    rows: PositiveInt | None = None
    """How many held-out rows are scored; by default all."""
    metric: Annotated[str, AfterValidator(_is_a_name)] = "auc"
    """What the target and the best model are judged by; the guest's own have a name, too."""
    target: float | None = None
    """Training stops when the metric is as good as this."""
    patience: PositiveInt | None = None
    """The number of evaluations without an improvement after which training stops."""


class Checkpoint(Settings):
    """All parties take a checkpoint every `every` rounds; by default at each evaluation."""

    every: PositiveInt | None = None
    """Rounds between two checkpoints; by default as many as between two evaluations."""


class Order(Settings):
    """How each epoch is shuffled: all rows, or in blocks for rows that do not fit in memory.

    With blocks, `window_blocks` blocks of `block_rows` consecutive rows are in memory at a time and
    shuffled together. All parties use the same order: if one party needs blocks, all use them.
    """

    shuffle: Literal["rows", "blocks"] = "rows"
    """Whether an epoch shuffles all rows, or blocks of rows that do not fit in memory."""
    block_rows: PositiveInt = 8192
    """Consecutive rows in a block."""
    window_blocks: PositiveInt = 64
    """Blocks that are in memory at a time and shuffled together."""


class AlignmentTerms(Settings):
    """How `celu align` blinds ids: on P-256, or with X25519, which takes about half the time."""

    group: Literal["P-256", "x25519"] = "P-256"
    """The curve of celu align; x25519 takes about half the CPU time."""


class HostTerms(Settings):
    """The contract's settings for one host: the width of its Z (by default the paper's)."""

    z_width: PositiveInt = 256
    """The width of this host's Z: the numbers that it sends for a row."""


def _width_alone(value: Any) -> Any:
    """`hosts={"weather": 64}` is short for `hosts={"weather": HostTerms(z_width=64)}`."""
    is_width = isinstance(value, int) and not isinstance(value, bool)
    return {"z_width": value} if is_width else value


AnyHostTerms = Annotated[HostTerms, BeforeValidator(_width_alone)]


PRESETS: dict[str, dict[str, Any]] = {
    # AdaGrad with a zero accumulator, and local steps at the guest only: the best settings that we
    # know across the datasets that we measured.
    "strong": {},
    # For the residual networks ("resnet"), which AdaGrad trains slowly. Without local steps: the
    # result is that of a pooled model.
    "tabular": {
        "batch_size": 256,
        "method": {"R": 1},
        "optimizer": {"name": "adam", "lr": 0.002, "schedule": "cosine"},
    },
    # The protocol of the paper's section 5.1, with values for the constants that it does not give.
    "paper": {
        "batch_size": 4096,
        "method": {"W": 5, "R": 5, "xi": 60.0, "weighting": "cosine"},
        "optimizer": {"name": "adagrad", "lr": 0.05, "initial_accumulator": 0.1},
    },
}


class Job(Settings):
    """The contract (`job.toml`): everything the parties must agree on before they train."""

    preset: Literal["strong", "tabular", "paper"] = "strong"
    """Values for the keys that are left out."""
    seed: Annotated[int, Field(ge=0)] = 1
    """The seed of weights, order and dropout."""
    batch_size: PositiveInt = 1024
    """Rows in a batch."""
    rounds: PositiveInt | None = None
    """The length of the run in rounds; or give epochs."""
    epochs: PositiveInt | None = None
    """The length of the run in epochs; or give rounds."""
    guest: PartyName = "guest"
    """The name of the party with the labels."""
    hosts: dict[PartyName, AnyHostTerms]
    """The other parties by name, with their terms."""
    order: Order = Order()
    codec: AnyCodecs = Codecs()
    """How Z and dZ are encoded: fp32, bf16, fp16, int8, 4bit, 2bit; "+zstd" compresses."""
    method: AnyMethod = Method()
    choices: list[Choice] = []
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    privacy: Privacy = Privacy()
    alignment: AlignmentTerms = AlignmentTerms()

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **fields: Any) -> None:
            """Raises ConfigError, which names each wrong field."""
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise ConfigError("\n".join(describe(error, type(self)))) from error

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("preset"), str):
            return data
        preset = PRESETS.get(data["preset"], {})
        optimizer, own = data.get("optimizer"), preset.get("optimizer", {}).get("name")
        if isinstance(optimizer, Mapping) and optimizer.get("name", own) != own:
            # Another optimizer: the preset's learning rate and options do not apply to it.
            preset = {key: value for key, value in preset.items() if key != "optimizer"}
        method = data.get("method")
        if method == "auto" or (isinstance(method, Mapping) and method.get("auto") is True):
            # The preset's W and R must not count as values that the user fixed.
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
    def _optimizer_fits(self) -> Job:
        parties = [self.guest, *self.hosts]
        for name in self.optimizer.party_lr:
            if name not in parties:
                raise ValueError(
                    f"optimizer.party_lr: expected parties of this job ({', '.join(parties)}), "
                    f"got {name!r}"
                )
        if self.rounds is not None:
            self.optimizer.check_length(self.rounds)
        return self

    @model_validator(mode="after")
    def _choices_in_order(self) -> Job:
        rounds = [choice.round for choice in self.choices]
        if rounds and (rounds[0] != 0 or rounds != sorted(set(rounds))):
            raise ValueError(f"choices: expected ascending rounds that start at 0, got {rounds}")
        if rounds and self.auto:
            raise ValueError("choices: expected none with method = auto; remove one of them")
        return self

    @property
    def auto(self) -> bool:
        """Whether the guest chooses the tuning while it trains."""
        return self.method.auto

    def tuning(self) -> Tuning:
        """The tuning of rounds that no choice covers."""
        method = self.method
        return Tuning(W=method.W, R=method.R, depth=method.depth, codec=self.codec)

    def given(self) -> set[str]:
        """The fields of a tuning that the user set: `auto` must not change them."""
        fields = self.method.model_fields_set | (self.model_fields_set & {"codec"})
        return fields & set(Tuning.model_fields)

    def num_rounds(self, rounds_per_epoch: int) -> int:
        """The length of the run, once the number of rows is known."""
        return self.rounds if self.rounds is not None else (self.epochs or 0) * rounds_per_epoch

    @property
    def checkpoint_every(self) -> int:
        """The number of rounds between two checkpoints."""
        return self.checkpoint.every or self.evaluation.every

    @property
    def max_depth(self) -> int:
        """The maximum number of rounds in flight, if the job fixes it."""
        return max([self.method.depth, *(choice.depth for choice in self.choices)])

    def contract(self) -> dict[str, Any]:
        """Every field by its dotted name, as compared in the handshake."""
        flat = _flatten(self.model_dump(exclude={"choices"}))
        chosen = [_flatten(choice.model_dump(exclude={"reason"})) for choice in self.choices]
        # There may be hundreds of choices, so they are compared by their hash.
        flat["choices"] = hashlib.sha256(json.dumps(chosen).encode()).hexdigest() if chosen else ""
        flat["checkpoint.every"] = self.checkpoint_every
        if self.optimizer.schedule == "constant":  # as in contracts of releases without schedules
            flat["optimizer.schedule"] = None
        if self.alignment.group == "P-256":  # as in contracts of releases with this group alone
            flat["alignment.group"] = None
        for name in ("privacy.z_noise", "privacy.dz_noise"):  # as in those without noise
            if name in flat:
                del flat[name]
        flat["method.given"] = " ".join(sorted(self.given())) if self.auto else ""
        return flat


def read_job(path: Path | str) -> Job:
    """Read and validate a contract; raises ConfigError."""
    return read_settings(Job, Path(path))


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

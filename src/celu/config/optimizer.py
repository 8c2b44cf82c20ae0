"""`[optimizer]` of `job.toml`: the optimizer, its learning rates and their schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from celu.config.reading import PartyName, Settings

# The optimizers or schedules that each option belongs to; the others belong to all of them.
_OF_OPTIMIZER = {"initial_accumulator": "adagrad", "momentum": "sgd"}
_OF_SCHEDULE = {
    "final_factor": ("cosine", "linear"),
    "step_rounds": ("step",),
    "step_factor": ("step",),
}
_ADAMW_DECAY = 0.01  # torch's


class Optimizer(Settings):
    """One optimizer for all parties; an option of another optimizer or schedule is refused.

    The updates are those of `torch.optim`. `lr` is the learning rate, `party_lr` has the rates of
    parties that need their own, and `embedding_lr` is the rate of embeddings at all parties.

    `schedule` multiplies every rate by a factor that depends on the round alone; all updates of a
    round, local steps included, use the same rate. "cosine" and "linear" fall to `final_factor` (0
    by default) at the end of the run, "step" multiplies by `step_factor` (0.1 by default) every
    `step_rounds` rounds. In the first `warmup_rounds` rounds the factor rises linearly to 1; the
    schedule starts after them.

    `weight_decay` is an L2 penalty, added to the gradient; with "adamw" it is decoupled from it,
    and 0.01 by default. In an embedding with sparse gradients it acts on the rows of the batch
    only. `clip_norm` is the largest norm of a party's gradient, over all of its parameters; a
    larger gradient is scaled down to it, before any weight decay.
    """

    name: Literal["adagrad", "sgd", "adam", "adamw"] = "adagrad"
    """The optimizer of torch.optim, at all parties."""
    lr: PositiveFloat = 0.03
    """The learning rate."""
    party_lr: dict[PartyName, PositiveFloat] = {}
    """Learning rates of parties that need their own, by name."""
    embedding_lr: PositiveFloat | None = None
    """The learning rate of embeddings, at all parties; by default that of the party."""
    initial_accumulator: Annotated[float, Field(ge=0)] | None = None
    """With adagrad: where its sums of squares start; by default 0."""
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """With sgd: that of torch; by default 0."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """An L2 penalty; with adamw decoupled from the gradient, and 0.01 by default."""
    clip_norm: PositiveFloat | None = None
    """The largest norm of a party's gradient; by default it is not clipped."""
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    """How the rate changes with the round."""
    warmup_rounds: Annotated[int, Field(ge=0)] | None = None
    """Rounds in which the rate rises linearly, before the schedule starts."""
    final_factor: Annotated[float, Field(ge=0, le=1)] | None = None
    """With cosine and linear: what the rate is multiplied by at the end; by default 0."""
    step_rounds: PositiveInt | None = None
    """With step: rounds between two changes."""
    step_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    """With step: what the rate is multiplied by; by default 0.1."""

    @model_validator(mode="after")
    def _options_belong_together(self) -> Optimizer:
        for option, owner in _OF_OPTIMIZER.items():
            if getattr(self, option) is not None and self.name != owner:
                raise ValueError(f"{option} is an option of {owner}, not of {self.name}")
        for option, names in _OF_SCHEDULE.items():
            if getattr(self, option) is not None and self.schedule not in names:
                schedules = " and ".join(f'"{name}"' for name in names)
                raise ValueError(
                    f"{option} is an option of schedule = {schedules}, "
                    f'not of schedule = "{self.schedule}"'
                )
        if self.schedule == "step" and self.step_rounds is None:
            raise ValueError('schedule = "step": expected step_rounds, too, got none')
        return self

    def check_length(self, num_rounds: int) -> None:
        """Raise ValueError if a run of this length ends before its warm-up."""
        if self.warmup_rounds and self.warmup_rounds >= num_rounds:
            raise ValueError(
                f"optimizer.warmup_rounds: expected fewer than the run's {num_rounds} rounds, "
                f"got {self.warmup_rounds}"
            )

    @property
    def decay(self) -> float:
        """The weight decay in effect."""
        if self.weight_decay is None:
            return _ADAMW_DECAY if self.name == "adamw" else 0.0
        return self.weight_decay

    @property
    def is_scaled(self) -> bool:
        """Whether a parameter's first update is as large as its rate, however small its gradient.

        True for Adam, and for AdaGrad that starts with an accumulator of 0.
        """
        if self.name == "adagrad":
            return not self.initial_accumulator
        return self.name in ("adam", "adamw")

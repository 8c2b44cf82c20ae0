"""The events of a run as types: what a reader may count on, whichever release wrote them.

Fields that older releases did not write are None or empty. Events of other names are kept as
`Event`, and fields that are not named here as extras.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Event(BaseModel):
    """Any event: `t` is in seconds since the run began, over all its attempts."""

    model_config = ConfigDict(extra="allow", frozen=True)
    t: float
    event: str

    @property
    def fields(self) -> dict[str, Any]:
        """What else it says."""
        return self.model_dump(exclude={"t", "event"})


class RoundEvent(Event):
    """An event that belongs to a round; `seconds` are those of training, by its own clock."""

    round: int
    seconds: float

    def is_undone_by(self, round_: int) -> bool:
        """Whether a run that goes on after so many rounds does it again."""
        return self.round > round_


class _Progress(RoundEvent):
    """What rounds and evaluations have in common."""

    bytes_sent: int = 0
    bytes_received: int = 0
    evaluation_bytes: int = 0
    control_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All that crossed this party's links until then."""
        return self.bytes_sent + self.bytes_received + self.evaluation_bytes + self.control_bytes


class RoundDone(_Progress):
    """So many rounds are done. Counts are of the whole run until then."""

    local_steps: int = 0
    bubbles: int = 0
    waited_s: float = 0.0
    loss: float | None = None  # the guest's, mean since the last such event
    similarity_quantiles: list[float] | None = None  # see SIMILARITY_AT
    spans: list[tuple[str, float, float]] = []  # what, from, to, in seconds of training
    table: list[tuple[int, int, float | None]] | None = None  # round, uses, median similarity
    staleness: float | None = None  # of the batches used since the last such event, in rounds


class Evaluated(_Progress):
    """Held-out rows were scored."""

    evaluating_s: float = 0.0
    target_reached: bool = False

    @property
    def metrics(self) -> dict[str, float]:
        """By name."""
        return {
            name: float(value)
            for name, value in (self.model_extra or {}).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }


class TuningChosen(RoundEvent):
    """The guest chose how to go on after so many rounds."""

    until: int
    reason: str
    W: dict[str, int] = {}
    R: dict[str, int] = {}
    depth: int = 1
    codec: dict[str, str] = {}
    back_to: str | None = None

    def is_undone_by(self, round_: int) -> bool:
        """See `RoundEvent`: it is told again where the run goes on from that very round."""
        return self.round >= round_


class TrainingStarted(Event):
    """Training began, or went on after so many rounds."""

    round: int = 0
    num_rounds: int


# The quantiles that `similarity_quantiles` gives.
SIMILARITY_AT = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
TYPES: dict[str, type[Event]] = {
    "round": RoundDone,
    "evaluation": Evaluated,
    "choice": TuningChosen,
    "started": TrainingStarted,
    "resumed": TrainingStarted,
}

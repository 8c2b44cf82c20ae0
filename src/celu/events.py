"""The events of a run: the engine emits them, the run folder records them, reports read them.

The same types serve for writing and reading. A field that an older release did not write has a
default; a field or an event of a newer release is read as an extra field or as a plain `Event`.
Events belong to the party that emits them: nothing in them is meant for a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, model_validator

from celu.errors import CallbackError, CeluError
from celu.text import printable_lines

# Text that may quote a file or a peer.
Printable = Annotated[str, AfterValidator(printable_lines)]
# Bounds that no run reaches, so that readers can calculate with what they find in a file.
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
MAX_SECONDS = 1e12
Seconds = Annotated[float, Field(ge=-MAX_SECONDS, le=MAX_SECONDS, allow_inf_nan=False)]
# The quantiles in `RoundDone.similarity_quantiles`.
SIMILARITY_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
_Quantiles = Annotated[
    list[float],
    Field(min_length=len(SIMILARITY_QUANTILES), max_length=len(SIMILARITY_QUANTILES)),
]
# The reason of a choice that keeps the tuning: now, and in runs of older releases.
UNCHANGED = ("unchanged", "as before")


def is_deep(value: object, levels: int = 16) -> bool:
    """Whether JSON has more levels than celu writes: recursive code could run out of stack."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(is_deep(v, levels - 1) for v in inner)


class Event(BaseModel):
    """Any event of a run."""

    model_config = ConfigDict(extra="allow", frozen=True)
    event: str
    """The name of its type."""
    t: Seconds = 0.0
    """Seconds since the run began, all attempts counted."""

    @property
    def fields(self) -> dict[str, Any]:
        """All fields that were set, except name and time, by their JSON names."""
        return self.model_dump(exclude={"t", "event"}, exclude_unset=True, by_alias=True)


Callback = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Do nothing with an event."""


def call_all(callbacks: Sequence[Callback]) -> Callback:
    """One callback that calls each of these functions of a user in turn.

    It raises CallbackError, which names the function, if one raises: an OSError of a user's
    function must not be taken for one of celu's own files or links.
    """

    def emit(event: Event) -> None:
        for callback in callbacks:
            try:
                callback(event)
            except CeluError:
                raise
            except Exception as error:
                name = getattr(callback, "__qualname__", type(callback).__qualname__)
                raise CallbackError(
                    f"the callback {name} raised {type(error).__name__} at the event "
                    f"{event.event!r}: {error}; correct it, and start again to resume the run"
                ) from error

    return emit


class Attempt(Event):
    """The party was started: the first time, or again after an interruption."""

    event: str = "attempt"
    number: Count


class Warned(Event):
    """Something looks wrong, but the run continues."""

    event: str = "warning"
    message: Printable


class DataOpened(Event):
    """The party's rows passed the gate (`data/gate.py`); `schema_digest` identifies the columns."""

    event: str = "data"
    schema_digest: str = Field(
        "", validation_alias=AliasChoices("schema", "schema_digest"), serialization_alias="schema"
    )
    train_rows: Count = 0
    validation_rows: Count = 0
    test_rows: Count = 0


class Connected(Event):
    """Every peer is connected; `secure` is False in an insecure run."""

    event: str = "connected"
    peers: list[str] = []
    secure: bool = True


class ClientRejected(Event):
    """The party that listens refused a client, or a client refused it; others may still connect."""

    event: str = "client_rejected"
    reason: Printable
    address: Printable = ""  # of the client, or of a gateway; not always known


class LinkDown(Event):
    """A connection ended; the link tries to reconnect."""

    event: str = "link_down"
    peer: str
    reason: Printable


class LinkUp(Event):
    """A link is up again; it was down for `seconds`."""

    event: str = "link_up"
    peer: str
    seconds: Seconds


class Restarted(Event):
    """A peer restarted, so this party starts over from the last common checkpoint."""

    event: str = "restart"
    message: Printable


class CheckpointDamaged(Event):
    """A checkpoint on disk is damaged or belongs to another run, and is not used."""

    event: str = "damaged"
    round: Count
    why: Printable


class AlignmentProgress(Event):
    """`done` of `total` ids are blinded and compared."""

    event: str = "aligning"
    done: Count
    total: Count


class ScoringProgress(Event):
    """`done` of `total` rows are scored; at a host, Z of them is sent."""

    event: str = "scoring"
    done: Count
    total: Count


class TrainingStarted(Event):
    """Training starts at round 0.

    `lower_is_better` names the metrics of the guest's own for which a lower value is better.
    """

    event: str = "started"
    round: Count = 0
    num_rounds: Count
    lower_is_better: list[str] = []


class TrainingResumed(TrainingStarted):
    """Training resumes after `round` rounds."""

    event: str = "resumed"


class RoundEvent(Event):
    """An event of a round; `seconds` are training time by the party's own clock."""

    round: Count
    seconds: Seconds

    def is_rolled_back_by(self, round_: int) -> bool:
        """Whether a run that resumes after `round_` rounds emits this event again."""
        return self.round > round_


class _Progress(RoundEvent):
    """The fields that rounds and evaluations share."""

    bytes_sent: Count = 0
    bytes_received: Count = 0
    evaluation_bytes: Count = 0
    control_bytes: Count = 0

    @property
    def bytes(self) -> int:
        """All bytes that crossed this party's links so far."""
        return self.bytes_sent + self.bytes_received + self.evaluation_bytes + self.control_bytes


class RoundDone(_Progress):
    """`round` rounds are done. Counts are totals of the run so far."""

    event: str = "round"
    local_steps: Count = 0
    bubbles: Count = 0
    waited_s: Seconds = 0.0
    loss: float | None = None  # the guest's, mean since the last event
    similarity_quantiles: _Quantiles | None = None
    spans: list[tuple[str, Seconds, Seconds]] = []  # activity, start, end, in seconds of training
    table: list[tuple[int, int, float | None]] | None = None  # round, uses, median similarity
    lr: float | None = None  # the party's learning rate in this round, embeddings aside
    staleness: float | None = None  # mean age in rounds of the batches used since the last event


class _Scored(_Progress):
    """Held-out rows were scored; the metrics are extra fields, by name."""

    evaluating_s: Seconds = 0.0

    @model_validator(mode="after")
    def _metrics_are_numbers(self) -> Self:
        try:
            _ = self.metrics
        except OverflowError as error:
            raise ValueError("expected metrics, got an integer with too many digits") from error
        return self

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name."""
        return {
            name: float(value)
            for name, value in (self.model_extra or {}).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }


class Evaluated(_Scored):
    """Held-out rows were scored during training: validation rows where there are any.

    `decides` names what chooses the best one, where the contract's metric does not fit the loss.
    """

    event: str = "evaluation"
    target_reached: bool = False
    rows: str = "test"  # or "validation"
    best: bool = False  # of the evaluations of validation rows so far
    decides: str | None = None


class ModelTested(_Scored):
    """The test rows were scored at the end, with the weights after `round` rounds: the best.

    Without validation rows there is no such event: evaluations score the test rows.
    """

    event: str = "test"

    def is_rolled_back_by(self, round_: int) -> bool:
        """See `RoundEvent`: a run that resumes scores the test rows again, when it ends."""
        return True


class TuningChosen(RoundEvent):
    """The guest chose W, R, depth and codec for the rounds from `round` to `until`."""

    event: str = "choice"
    until: Count
    reason: Printable
    W: dict[str, int] = {}
    R: dict[str, int] = {}
    depth: Count = 1
    codec: dict[str, str] = {}
    back_to: str | None = None  # the savepoint that was rolled back to, if any

    @property
    def is_unchanged(self) -> bool:
        """Whether the previous tuning stays in effect."""
        return self.reason in UNCHANGED

    def is_rolled_back_by(self, round_: int) -> bool:
        """See `RoundEvent`: a run that resumes at this very round emits the choice again."""
        return self.round >= round_


class CheckpointTaken(RoundEvent):
    """A checkpoint was taken after `round` rounds; it may not be on disk yet."""

    event: str = "checkpoint"


class Protected(Event):
    """The contract has a defence: what it promises, in a sentence."""

    event: str = "defence"
    promise: str = ""


class Audited(Event):
    """The run was audited; `audit.json` has the figures. `rows` were recorded."""

    event: str = "audit"
    rows: Count = 0
    seconds: Seconds = 0.0


EVENT_TYPES: dict[str, type[Event]] = {
    kind.model_fields["event"].default: kind
    for kind in (
        *(Attempt, Warned, DataOpened, ClientRejected, Connected, LinkDown, LinkUp, Restarted),
        CheckpointDamaged,
        *(AlignmentProgress, ScoringProgress, TrainingStarted, TrainingResumed),
        *(RoundDone, Evaluated, ModelTested, TuningChosen, CheckpointTaken, Audited, Protected),
    )
}

"""How a party measures what its run leaked (`[audit]` in `party.toml`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from celu.config.reading import Settings


class AuditSettings(Settings):
    """How many training rows a party records, and how many of their exposures.

    An exposure is a round in which a row's Z and dZ cross the link; of each row the newest
    `exposures` are recorded. `canaries` are rows of the guest's sample whose labels are replaced
    by random ones before training: an attack on these rows measures what it learns of a label that
    nothing else predicts. They cost a little accuracy, so they are for a run that is an audit.
    """

    rows: Annotated[int, Field(ge=400, le=200_000)] = 5000
    """Training rows that are recorded."""
    exposures: Annotated[int, Field(ge=1, le=50)] = 5
    """The newest messages that are recorded of each row."""
    canaries: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Recorded rows of the guest whose labels are replaced by random ones."""

    @model_validator(mode="after")
    def _most_rows_have_their_own_labels(self) -> AuditSettings:
        if self.canaries > self.rows // 2:
            raise ValueError(
                f"canaries: expected at most half of audit.rows, {self.rows // 2}, "
                f"got {self.canaries}"
            )
        return self

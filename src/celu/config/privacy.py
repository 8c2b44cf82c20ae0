"""How labels are protected: `[privacy]` in `job.toml`, and a party's own in `party.toml`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from celu.config.reading import Settings

# Above 20, one row in 500 million changes; below 0.01, hardly anything can be learned.
Epsilon = Annotated[float, Field(ge=0.01, le=20)]


class Privacy(Settings):
    """The defences of a run.

    With `label_epsilon`, what hosts receive is computed from randomized labels alone, which is
    label differential privacy with this epsilon (docs/reference.md).
    """

    label_epsilon: Epsilon | None = None


class PartyPrivacy(Settings):
    """The guest's own limit: the most epsilon that all runs may spend on its labels together."""

    budget: Annotated[float, Field(gt=0)] | None = None

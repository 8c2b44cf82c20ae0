"""How a run protects labels and Z: `[privacy]` in `job.toml`, a party's own in `party.toml`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from celu.config.reading import Settings

# Above 20, one row in 500 million changes; below 0.01, hardly anything can be learned.
Epsilon = Annotated[float, Field(ge=0.01, le=20)]
Positive = Annotated[float, Field(gt=0, le=1e6)]


class GaussianNoise(Settings):
    """Gaussian noise on each row, whose length is clipped first.

    `clip` is the greatest length (L2 norm) of a row. The noise of each of its numbers has the
    standard deviation `noise_multiplier` times `clip`. Of dZ, a row is the derivative of the row's
    own loss, whatever the batch size.
    """

    name: Literal["gaussian"] = "gaussian"
    """The kind of noise."""
    clip: Positive
    """The greatest length (L2 norm) of a row, to which longer ones are clipped."""
    noise_multiplier: Positive
    """The standard deviation of the noise, as a multiple of clip."""


class MarvellNoise(Settings):
    """Noise that makes dZ of two classes look alike (Marvell, ICLR 2022).

    `power` is that of all noise in a batch, as a multiple of the squared distance between the
    classes' means.
    """

    name: Literal["marvell"]
    """The kind of noise."""
    power: Positive
    """The noise in a batch, as a multiple of the squared distance of the classes' means."""


class Privacy(Settings):
    """The defences of a run.

    With `label_epsilon`, what hosts receive is computed from randomized labels alone, which is
    label differential privacy with this epsilon.

    `z_noise` is added to Z at each host, `dz_noise` to dZ at the guest: `{name = "gaussian", clip,
    noise_multiplier}` or, for dZ, `{name = "marvell", power}`. Noise makes attacks harder, and
    guarantees little: `celu audit` shows what is still found (docs/privacy.md).
    """

    label_epsilon: Epsilon | None = None
    """Label differential privacy: hosts receive only what follows from randomized labels."""
    z_noise: GaussianNoise | None = None
    dz_noise: Annotated[GaussianNoise | MarvellNoise, Field(discriminator="name")] | None = None

    @model_validator(mode="after")
    def _one_defence_of_labels(self) -> Privacy:
        if self.label_epsilon is not None and self.dz_noise is not None:
            raise ValueError(
                "dz_noise: expected none with label_epsilon: dZ is then computed from randomized "
                "labels, and noise would only make it less useful; remove one of them"
            )
        return self


class PartyPrivacy(Settings):
    """The guest's own limit: the most epsilon that all runs may spend on its labels together."""

    budget: Annotated[float, Field(gt=0)] | None = None
    """The most epsilon that all runs may spend on the guest's labels together."""

"""Settings of an emulated network link, and named profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from celu.config.reading import Settings
from celu.errors import ConfigError

NotNegative = Annotated[float, Field(ge=0)]


class LinkSettings(Settings):
    """One direction of a link: bandwidth, one-way delay, added jitter, and outages.

    Every `outage_every_s` seconds the link is down for `outage_s` seconds.
    """

    mbps: PositiveFloat
    """The bandwidth in megabits per second."""
    delay_ms: NotNegative = 0.0
    """The delay in one direction."""
    jitter_ms: NotNegative = 0.0
    """The most that is added to the delay, at random."""
    outage_every_s: NotNegative = 0.0
    """Seconds between the starts of two outages."""
    outage_s: NotNegative = 0.0
    """Seconds of an outage."""

    @model_validator(mode="after")
    def _outages_are_valid(self) -> LinkSettings:
        if (self.outage_s > 0) != (self.outage_every_s > 0):
            raise ValueError("outage_s or outage_every_s is missing: give both or neither")
        if self.outage_s > 0 and self.outage_s >= self.outage_every_s:
            raise ValueError(
                "expected outage_s shorter than outage_every_s, or the link is always down"
            )
        return self


PROFILES = {
    "wan-300": LinkSettings(mbps=300.0, delay_ms=20.0),  # the paper's bandwidth
    "wan-100": LinkSettings(mbps=100.0, delay_ms=20.0),
    "lte": LinkSettings(mbps=30.0, delay_ms=35.0, jitter_ms=15.0),
    "lan": LinkSettings(mbps=1000.0, delay_ms=0.2),
}


def find_link(name: str) -> LinkSettings:
    """The profile with this name; raises ConfigError."""
    if name not in PROFILES:
        raise ConfigError(f"link: expected one of {', '.join(PROFILES)}, got {name!r}")
    return PROFILES[name]


def _find_profile(value: Any) -> Any:
    if isinstance(value, str):
        if value not in PROFILES:
            raise ValueError(f"expected one of {', '.join(PROFILES)}, got {value!r}")
        return PROFILES[value]
    return value


if TYPE_CHECKING:
    AnyLink = LinkSettings
else:
    AnyLink = Annotated[LinkSettings, BeforeValidator(_find_profile)]

"""The serving contract (`serving.toml`): how trained models are used, identical at all parties."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from celu.config.reading import PartyName, Settings, read_settings

MAX_CHUNK_ROWS = 65536


class Serving(Settings):
    """Everything the parties must agree on before they predict or serve.

    `codec` encodes Z, with rounding to nearest: asking again reveals no more of it. `celu predict`
    sends Z of `chunk_rows` rows in a message. `celu serve` names a row by its number in the
    alignment, or with `asks = "tags"` by its tag: hosts then also answer for rows that were not
    aligned, and a host that can guess an id recognizes it. With `mode = "pushed"` hosts send Z of
    all aligned rows in advance: a host does not see which rows are scored, and the guest holds the
    Z of every aligned row.
    """

    guest: PartyName = "guest"
    """The name of the guest."""
    hosts: list[PartyName]
    """The names of the hosts."""
    codec: Annotated[str, Field(max_length=50)] = "fp32"
    """How Z is encoded."""
    chunk_rows: Annotated[int, Field(ge=1, le=MAX_CHUNK_ROWS)] = 512
    """celu predict: rows in a message."""
    asks: Literal["numbers", "tags"] = "numbers"
    """celu serve: whether rows are named by their number in the alignment, or by their tag."""
    mode: Literal["asked", "pushed"] = "asked"
    """celu serve: whether the guest asks for Z of a row, or hosts send all in advance."""

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Serving:
        names = [self.guest, *self.hosts]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"hosts: expected distinct names of parties, got {name!r} twice")
        return self

    def contract(self) -> dict[str, Any]:
        """Every field by name, as compared in the handshake."""
        return self.model_dump()


def read_serving(path: Path | str) -> Serving:
    """Read and validate a serving contract; raises ConfigError."""
    return read_settings(Serving, Path(path))

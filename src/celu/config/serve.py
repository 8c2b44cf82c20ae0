"""The section `[serve]` of `party.toml`: one party's private settings of `celu serve`."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from celu.config.reading import Address, FilePath, Settings

Fallback = Literal["refuse", "mean"] | FilePath


class ServeSettings(Settings):
    """How this party serves. Each setting belongs to one role.

    At the guest: clients reach it at `listen`, over HTTP or, with `certificate` and `key`, HTTPS.
    An address that other machines can reach needs `ca`, the authority of the clients' certificates,
    or `token_file`, a file with the token that clients send. A host that does not answer within
    `deadline_ms` is replaced: by its mean Z ("mean"), by another exported model that needs no hosts
    (its path), or not at all ("refuse"). A cache of `cache_mb` holds each Z for `cache_s`.

    At a host: `lookup` is a class "module:Class" that returns a row's current features, instead of
    the store's. The guest gets at most `rows_per_second`, and `distinct_rows_per_day` different
    rows on one day (UTC).

    `folder` holds what must survive a restart: the rows answered today, and Z that hosts pushed.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "celu"
    """The model's name in requests."""
    listen: Address = "127.0.0.1:8080"
    """HOST:PORT at which clients reach the guest."""
    certificate: FilePath | None = None
    """The guest's certificate for HTTPS (PEM)."""
    key: FilePath | None = None
    """Its private key (PEM)."""
    ca: FilePath | None = None
    """The authority of the clients' certificates (PEM)."""
    token_file: FilePath | None = None
    """A file with the token that clients send."""
    deadline_ms: Annotated[float, Field(gt=0, le=60_000)] = 200.0
    """A host that does not answer in this time is replaced by the fallback."""
    fallback: Fallback = "mean"
    """What replaces a host: its mean Z, a model without hosts (its path), or no answer."""
    cache_mb: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """The size of the guest's cache of Z."""
    cache_s: Annotated[float, Field(gt=0, le=1e6)] = 60.0
    """How long a Z is cached."""
    max_rows: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """Rows in a request."""
    max_body_mb: Annotated[int, Field(ge=1, le=1024)] = 8
    """The size of a request."""
    max_requests: Annotated[int, Field(ge=1, le=10_000)] = 256
    """Requests at the same time."""
    lookup: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")] | None = None
    """A host's class "module:Class" that returns current features, in place of the store."""
    rows_per_second: PositiveInt | None = None
    """The most rows that a host answers for in a second."""
    distinct_rows_per_day: PositiveInt | None = None
    """The most different rows that a host answers for on one day (UTC)."""
    folder: FilePath | None = None
    """What must survive a restart; by default "serve" beside party.toml."""

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach `listen`."""
        host = self.listen.rsplit(":", 1)[0].strip("[]")
        try:
            return host != "localhost" and not ip_address(host).is_loopback
        except ValueError:
            return True

    @model_validator(mode="after")
    def _clients_are_authenticated(self) -> ServeSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key: expected both or none")
        if self.ca is not None and self.certificate is None:
            raise ValueError("ca: client certificates need HTTPS: give certificate and key too")
        if self.is_exposed and self.ca is None and self.token_file is None:
            raise ValueError(
                f"listen: other machines can reach {self.listen}: give ca, the authority of the "
                "clients' certificates, or token_file; or listen at 127.0.0.1"
            )
        return self

"""The contract's noise on Z and dZ: added to a message's tensor before it is encoded.

The receiver caches what it receives, so its local steps reveal nothing more. The sender caches
its tensor as it was without noise: a host compares Z with it, a guest dZ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from celu.config.job import Job
from celu.config.privacy import MarvellNoise
from celu.errors import ConfigError
from celu.party import Guest, Host
from celu.privacy.row_noise import RowNoise
from celu.privacy.secret_key import NOISE, SecretKey
from celu.transport.message import Message


def check_noise(party: Guest | Host, job: Job) -> None:
    """Raise ConfigError for noise that does not fit method or labels, or without a usable key."""
    named = {"z_noise": job.privacy.z_noise, "dz_noise": job.privacy.dz_noise}
    for name, noise in named.items():
        if noise is not None and job.auto:
            raise ConfigError(
                f"privacy.{name}: expected none with method.auto, which judges stale derivatives "
                "by what noise hides, and repeats rounds, so that rows are exposed more often; "
                "set W, R, depth and codec instead"
            )
    if isinstance(party, Host):
        MessageNoise.of_host(job, party)
        return
    MessageNoise.of_guest(job, party)
    if isinstance(job.privacy.dz_noise, MarvellNoise) and party.loss.labels != "binary":
        raise ConfigError(
            "privacy.dz_noise: expected labels of two classes with Marvell's noise, got a loss of "
            f"{party.loss.labels or 'undeclared'} labels; use gaussian noise"
        )


@dataclass(frozen=True)
class MessageNoise:
    """A party's noise on what it sends; none if the contract has none for it."""

    noise: RowNoise | None

    @classmethod
    def of_host(cls, job: Job, host: Host) -> MessageNoise:
        """The noise on a host's Z; raises ConfigError for a key that cannot be used."""
        settings = job.privacy.z_noise
        if settings is None:
            return cls(None)
        return cls(RowNoise(settings, SecretKey.read(host.noise_key, NOISE)))

    @classmethod
    def of_guest(cls, job: Job, guest: Guest) -> MessageNoise:
        """The noise on dZ, the derivative of a mean over a batch; raises as `of_host`."""
        settings = job.privacy.dz_noise
        if settings is None or not job.hosts:
            return cls(None)
        key = SecretKey.read(guest.noise_key, NOISE)
        return cls(RowNoise(settings, key, unit=1 / job.batch_size))

    @property
    def fingerprint(self) -> str | None:
        """That of the key, for a checkpoint."""
        return None if self.noise is None else self.noise.key.fingerprint

    def check_same_key(self, fingerprint: str | None) -> None:
        """Raise CheckpointError unless a checkpoint was written with this key."""
        if self.noise is not None:
            self.noise.key.check_same(fingerprint, NOISE)

    @property
    def needs_classes(self) -> bool:
        """Whether noise depends on the class of a row, as Marvell's does."""
        return self.noise is not None and isinstance(self.noise.settings, MarvellNoise)

    def add(self, message: Message, host: str, is_positive_B: Tensor | None = None) -> Message:
        """The message from or to a host, with noise on its tensor."""
        if self.noise is None or message.tensor is None:
            return message
        where = f"{message.kind.name} {host} {message.round} {message.part}"
        return replace(message, tensor=self.noise.add(where, message.tensor, is_positive_B))

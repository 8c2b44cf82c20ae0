"""Everything celu raises on purpose, and the exit code each one ends a command with.

    CeluError                      1   anything below; also an unforeseen failure
    ├── ConfigError                3   a settings file or an option is wrong
    ├── DataError                  4   a party's rows are missing, of the wrong type or too few
    ├── ModelError                 5   a user's module or loss does not keep its promise
    ├── CertificateError           6   a key or certificate is unreadable, or the peer's was refused
    ├── ContractMismatch           7   the parties hold different contracts
    ├── ProtocolError              8   a peer sent what the protocol forbids
    │   └── ShapeError             9   ... a tensor of a shape or type the contract forbids
    ├── NonFiniteError            10   NaN or Inf where a number was due; no step was applied
    ├── PeerLost                  11   the link ended, or a wait ran past its deadline
    │   └── PeerRestarted         11   ... the peer began anew; its earlier process is gone
    ├── PeerFailed                12   the peer stopped and said why
    ├── AlignmentError            13   the parties' rows are not the same; no step was applied
    └── CheckpointError           14   what is kept of a run cannot be written or gone on from

2 is a command line that could not be parsed, 130 an interrupt (Ctrl-C). Messages name what, where,
expected, got and the next step; they never hold an id, a label or a feature value, because those of
them that have a `public` form are sent to the peer.
"""

from __future__ import annotations


class CeluError(Exception):
    """Base of every error that celu raises on purpose."""

    exit_code = 1

    def public(self) -> str:
        """What a peer may read of this error: its kind alone, unless a subclass knows better."""
        return type(self).__name__


class ConfigError(CeluError):
    """A settings file or an option is wrong; nothing was started."""

    exit_code = 3


class DataError(CeluError):
    """A party's data is missing, of the wrong type or too small."""

    exit_code = 4


class ModelError(CeluError):
    """A bottom, top or loss does not give what its role promises."""

    exit_code = 5


class CertificateError(CeluError):
    """A key or certificate is missing or unreadable, or a peer's certificate was refused."""

    exit_code = 6


class ContractMismatch(CeluError):
    """The parties hold different contracts; refused before a tensor crossed."""

    exit_code = 7

    def public(self) -> str:
        """The contract is shared by definition, so the fields that differ may be named."""
        return str(self)


class ProtocolError(CeluError):
    """A peer sent a message that the protocol forbids at this point; it was not applied."""

    exit_code = 8

    def public(self) -> str:
        """Protocol messages speak of kinds, rounds and sizes only."""
        return str(self)


class ShapeError(ProtocolError):
    """A tensor's shape or type is not what the contract says; it was not allocated or applied."""

    exit_code = 9


class NonFiniteError(CeluError):
    """NaN or Inf appeared; the step was not applied and nothing of it was sent."""

    exit_code = 10

    def public(self) -> str:
        """Says where and when, never which value."""
        return str(self)


class PeerLost(CeluError):
    """The link to a peer ended, or a wait for it ran past its deadline."""

    exit_code = 11


class PeerRestarted(PeerLost):
    """A peer's process began anew, so the conversation with its earlier one is over."""


class PeerFailed(CeluError):
    """A peer stopped on an error of its own and told us so."""

    exit_code = 12


class AlignmentError(CeluError):
    """The parties' rows are not the same rows in the same order; no step was applied to them."""

    exit_code = 13

    def public(self) -> str:
        """Speaks of rounds and parties, never of rows."""
        return str(self)


class CheckpointError(CeluError):
    """What is kept of a run could not be written, or the parties cannot go on from it.

    `shared`: it speaks of parties, runs and rounds alone, so that all parties may read it.
    """

    exit_code = 14

    def __init__(self, message: str, *, shared: bool = False) -> None:
        super().__init__(message)
        self._shared = shared

    def public(self) -> str:
        """What is on a party's disk is its own business, unless it is the parties' in common."""
        return str(self) if self._shared else super().public()

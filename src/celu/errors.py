"""The exceptions that celu raises, and the exit code of a command that ends with one.

    CeluError                      1   base class; also an unexpected error
    ├── ConfigError                3   a settings file or an option is wrong
    ├── DataError                  4   a party's rows are missing, of the wrong type or too few
    ├── ModelError                 5   a model or loss returned the wrong shape, type or device
    ├── CertificateError           6   a key or certificate is unreadable, or a peer's was refused
    ├── ContractMismatch           7   the parties hold different contracts
    ├── ProtocolError              8   a peer violated the protocol
    │   └── ShapeError             9   ... with a tensor whose shape or dtype does not match
    ├── NonFiniteError            10   NaN or Inf in a loss, a tensor or the weights
    ├── PeerLost                  11   the link to a peer ended, or a deadline passed
    │   ├── PeerRestarted         11   ... because the peer restarted
    │   └── AskExpired            11   ... of an ask, whose answer came too late or not at all
    ├── PeerFailed                12   a peer stopped and reported why
    ├── AlignmentError            13   the parties' rows differ; no step was applied
    ├── CheckpointError           14   a checkpoint cannot be written or resumed from
    ├── RankLost                  15   another rank of this party is gone; torchrun restarts all
    ├── AskRefused                 1   a host refused an ask; commands have none
    ├── RequestError               1   a client's request over HTTP was refused; commands have none
    ├── TrialPruned                1   a trial of a search was stopped early; commands have none
    └── CallbackError              1   a function in `callbacks` raised; commands have none

2 is a command line that could not be parsed, 130 an interrupt (Ctrl-C). A message says what
happened, where, what was expected and the next step. It never contains an id, a label or a feature
value: messages of the classes that override `public` are sent to the peers.
"""

from __future__ import annotations

from celu.text import printable_lines


class CeluError(Exception):
    """Base class of every exception that celu raises."""

    exit_code = 1

    def __str__(self) -> str:
        """The message; text that it quotes from a file or a peer cannot control a terminal."""
        return printable_lines(super().__str__())

    def public(self) -> str:
        """The text that is sent to peers: the class name, unless a subclass overrides it."""
        return type(self).__name__

    def public_to(self, peer: str) -> str:
        """The text that is sent to this peer, which may be less than others get."""
        return self.public()


class ConfigError(CeluError):
    """A settings file or an option is wrong; nothing was started."""

    exit_code = 3


class DataError(CeluError):
    """A party's data is missing, of the wrong type or too small."""

    exit_code = 4


class ModelError(CeluError):
    """A bottom, top or loss cannot be used, or returned the wrong shape, type or device."""

    exit_code = 5


class CertificateError(CeluError):
    """A key or certificate is missing or unreadable, or a peer's certificate was refused."""

    exit_code = 6


class ContractMismatch(CeluError):
    """The parties hold different contracts; no tensor was sent.

    `peer` is the one whose contract differs: the others do not get to know how.
    """

    exit_code = 7

    def __init__(self, message: str, *, peer: str = "") -> None:
        super().__init__(message)
        self._peer = peer

    def public(self) -> str:
        """The whole message: the contract is shared, so differing fields may be named."""
        return str(self)

    def public_to(self, peer: str) -> str:
        """The whole message for the peer that it is about."""
        if self._peer in ("", peer):
            return str(self)
        return f"the contract of {self._peer} differs"


class ProtocolError(CeluError):
    """A peer sent a message that the protocol does not allow here; it was not applied."""

    exit_code = 8

    def public(self) -> str:
        """The whole message: it names message kinds, rounds and sizes only."""
        return str(self)


class ShapeError(ProtocolError):
    """A tensor's shape or dtype violates the contract; it was not allocated or applied."""

    exit_code = 9


class NonFiniteError(CeluError):
    """NaN or Inf appeared; it was not applied, sent or written to a checkpoint."""

    exit_code = 10

    def public(self) -> str:
        """The whole message: it names a tensor and a round, never a value."""
        return str(self)


class PeerLost(CeluError):
    """The link to a peer ended, or a deadline passed while waiting for the peer."""

    exit_code = 11


class PeerRestarted(PeerLost):
    """A peer's process restarted, so the session with its earlier process is over."""


class AskExpired(PeerLost):
    """The deadline of an ask passed; the link may still work, and a later ask may succeed."""


class AskRefused(CeluError):
    """A host refused an ask; `reason` is one of the codes of `transport/ask.py`."""

    def __init__(self, message: str, *, reason: str = "failed") -> None:
        super().__init__(message)
        self.reason = reason


class RequestError(CeluError):
    """A client's request over HTTP cannot be answered; `status` is the HTTP status that says why.

    The client gets the message.
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class PeerFailed(CeluError):
    """A peer stopped with an error of its own and reported it."""

    exit_code = 12


class RankLost(CeluError):
    """Another rank of this party is gone, or did not answer in time.

    Peers are not told: torchrun restarts the party, and they notice when it connects again.
    """

    exit_code = 15


class AlignmentError(CeluError):
    """The parties do not have the same rows in the same order; no step was applied."""

    exit_code = 13

    def public(self) -> str:
        """The whole message: it names rounds and parties, never rows."""
        return str(self)


class CallbackError(CeluError):
    """A function that was passed as a callback raised; the run has ended and can be resumed."""


class TrialPruned(CeluError):
    """Raised from a trial's callback to stop it: it is worse than the median at that round."""


class CheckpointError(CeluError):
    """A checkpoint cannot be written or resumed from, or a run's file cannot be written.

    With `shared`, the message names only parties, runs and rounds, and is sent to the peers.
    """

    exit_code = 14

    def __init__(self, message: str, *, shared: bool = False) -> None:
        super().__init__(message)
        self._shared = shared

    def public(self) -> str:
        """The whole message if `shared`; otherwise it may name files of this party."""
        return str(self) if self._shared else super().public()

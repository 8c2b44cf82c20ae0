"""The parties' operators: if the parties refuse to repeat many rounds, they agree to restart."""

from __future__ import annotations

import re
from collections.abc import Mapping

from celu.errors import CeluError, CheckpointError
from chaos.party_process import Party

_ADVICE = re.compile(r"--restart-from (\d+)")
# Nothing but the start is common to all parties.
_FROM_THE_START = ("cannot restart from round", "different runs")


class Operators:
    """Pass `--restart-from` at all parties, once, after the parties refused to resume."""

    def __init__(self, parties: Mapping[str, Party]) -> None:
        self._parties = parties

    def on_error(self, error: CeluError) -> None:
        """A party stopped with an error; it is started again in any case."""
        if not isinstance(error, CheckpointError):
            return
        advised = _ADVICE.search(str(error))
        if any(text in str(error) for text in _FROM_THE_START):
            self._restart_from(0)
        elif advised is not None:
            self._restart_from(int(advised[1]))

    def _restart_from(self, round_: int) -> None:
        for party in self._parties.values():
            # Parties know different peers: the earliest round is common to all.
            earlier = round_ if party.restart_from is None else party.restart_from
            party.restart_from = min(round_, earlier)

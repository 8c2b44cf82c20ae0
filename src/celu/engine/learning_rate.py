"""The learning rates of a party in each round: the contract's rates and their schedule.

A rate is a function of the settings and the round, never of timing or of what was trained before,
so a resumed or rolled-back run needs no state of it. The factors are those of torch's LinearLR
(warm-up and "linear"), CosineAnnealingLR and StepLR, with one step per round.
"""

from __future__ import annotations

import math

from celu.config.optimizer import Optimizer as Settings
from celu.errors import ConfigError


class LearningRate:
    """The rates of one party in a run of `num_rounds` rounds.

    Raises ConfigError if the run ends before its warm-up.
    """

    def __init__(self, settings: Settings, party: str, num_rounds: int) -> None:
        try:
            settings.check_length(num_rounds)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._settings = settings
        self._num_rounds = num_rounds
        self.base = settings.party_lr.get(party, settings.lr)
        self.base_of_embeddings = settings.embedding_lr or self.base

    def factor(self, round_: int) -> float:
        """What the rates are multiplied by in a round; rounds count from 0."""
        settings, warmup = self._settings, self._settings.warmup_rounds or 0
        if round_ < warmup:
            return (round_ + 1) / (warmup + 1)
        after = round_ - warmup
        if settings.schedule == "step":
            assert settings.step_rounds is not None  # checked with the settings
            factor = 0.1 if settings.step_factor is None else settings.step_factor
            return float(factor ** (after // settings.step_rounds))
        final, share = settings.final_factor or 0.0, after / (self._num_rounds - warmup)
        if settings.schedule == "cosine":
            return final + (1 - final) * (1 + math.cos(math.pi * share)) / 2
        if settings.schedule == "linear":
            return 1 - (1 - final) * share
        return 1.0

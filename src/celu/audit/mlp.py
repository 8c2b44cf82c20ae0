"""A small network with ReLUs, trained by AdamW on minibatches with its own random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

_BATCH = 256
_MIN_STEPS = 250
_LR = 3e-3
_WEIGHT_DECAY = 0.02


class Mlp:
    """Layers of these widths, the first that of the inputs, the last that of the outputs."""

    def __init__(self, widths: Sequence[int], random: torch.Generator) -> None:
        self._random = random
        self._layers = [
            (
                (torch.randn(a, b, generator=random) * (2 / a) ** 0.5).requires_grad_(),
                torch.zeros(b, requires_grad=True),
            )
            for a, b in pairwise(widths[:-1])
        ]
        last = torch.zeros(widths[-2], widths[-1], requires_grad=True)  # outputs 0 at first
        self._layers.append((last, torch.zeros(widths[-1], requires_grad=True)))

    def __call__(self, x_NF: Tensor) -> Tensor:
        """The outputs, [N, last width]."""
        for number, (weights, bias) in enumerate(self._layers):
            x_NF = torch.addmm(bias, x_NF.relu() if number else x_NF, weights)
        return x_NF

    def epochs(
        self, rows: Tensor, loss: Callable[[Tensor], Tensor], num_epochs: int
    ) -> Iterator[None]:
        """Train over these row numbers, longer if they are few; yields after each epoch."""
        parameters = [tensor for layer in self._layers for tensor in layer]
        optimizer = torch.optim.AdamW(parameters, lr=_LR, weight_decay=_WEIGHT_DECAY, foreach=True)
        for _ in range(max(num_epochs, _MIN_STEPS * _BATCH // max(1, len(rows)))):
            order = rows[torch.randperm(len(rows), generator=self._random)]
            for batch in order.split(_BATCH):
                optimizer.zero_grad()
                loss(batch).backward()
                optimizer.step()
            yield

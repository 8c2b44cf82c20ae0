"""Numbers as vectors: each column piecewise linear between quantiles of the training rows.

These are the piecewise linear encodings of Gorishniy et al., "On Embeddings for Numerical Features
in Tabular Deep Learning" (NeurIPS 2022), followed by a layer for each column. We differ in two
ways. Its initial weights are equal for all bins of a column, so that an embedding starts as a
linear function of a value's rank, and training bends it. And each edge has an offset of its own:
an update of a bin's weight moves all values above it, while an update of an offset moves only the
bins beside it, so that one day of a year may differ from the next. The unit of a column does not
matter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SPREAD = 12**0.5  # a rank is uniform in [0, 1]: this makes its deviation 1


class NumberEmbedding(nn.Module):
    """Embeddings of some columns of numbers, concatenated.

    `examples` are training rows, [N, columns]. Without them, as for a model whose weights are
    loaded next, the edges of the bins are 0.
    """

    edges: Tensor

    def __init__(self, columns: int, bins: int, dim: int, examples: Tensor | None = None) -> None:
        super().__init__()
        edges_CE = torch.zeros(columns, bins + 1)
        if examples is not None:
            edges_CE = _quantiles(examples, bins)
        self.register_buffer("edges", edges_CE)
        slope_C1D = torch.randn(columns, 1, dim) * (_SPREAD / bins)
        self.weight = nn.Parameter(slope_C1D.repeat(1, bins, 1))
        self.bias = nn.Parameter(slope_C1D[:, 0] * (-bins / 2))
        self.offsets = nn.Parameter(torch.zeros(columns, bins + 1, dim))

    def forward(self, numbers_BC: Tensor) -> Tensor:
        """[B, columns * dim].

        At an edge, the embedding is the sum of the weights of all bins below it, and the edge's
        offset; between two edges it is linear. Bins without width, between equal quantiles, are
        steps.
        """
        columns, bins, dim = self.weight.shape
        low_CE, widths_CE = self.edges[:, :-1], self.edges.diff(dim=1)
        passed_BC = (numbers_BC.unsqueeze(-1) >= low_CE).sum(dim=-1)
        number_BC = (passed_BC - 1).clamp_min(0)
        columns_C = torch.arange(columns, device=low_CE.device)
        bin_BC = number_BC + columns_C * bins
        above_BC = numbers_BC - low_CE.reshape(-1)[bin_BC]
        width_BC = widths_CE.reshape(-1)[bin_BC]
        share_BC = torch.where(
            width_BC > 0,
            above_BC / width_BC.clamp_min(torch.finfo(width_BC.dtype).tiny),
            (above_BC >= 0).to(above_BC.dtype),
        ).clamp(0, 1)
        sums_CED = F.pad(self.weight.cumsum(dim=1), (0, 0, 1, 0))
        at_edges = (sums_CED + self.bias.unsqueeze(1) + self.offsets).reshape(-1, dim)
        edge_BC = number_BC + columns_C * (bins + 1)
        lower_BCD = F.embedding(edge_BC, at_edges)
        upper_BCD = F.embedding(edge_BC + 1, at_edges)
        found_BCD = lower_BCD + share_BC.unsqueeze(-1) * (upper_BCD - lower_BCD)
        return found_BCD.flatten(start_dim=1)


def _quantiles(examples_NC: Tensor, bins: int) -> Tensor:
    """The edges of bins with equal numbers of rows, [columns, bins + 1]."""
    shares = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    return torch.quantile(examples_NC.double().cpu(), shares, dim=0).T.float().contiguous()

"""The rows of a table that a rank owns, and how they are drawn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from celu.ranks.own_rows import blocks_of, draw_rows, num_own, own_rows

# Smaller than one draw of torch, not whole draws, several blocks, and a block and a little.
SHAPES = [(3, 2), (17, 1), (1000, 3), (70_000, 16), ((1 << 20) + 7, 1)]


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_rows_that_are_drawn_in_blocks_have_the_bits_of_a_whole_table(
    rows: int, width: int
) -> None:
    torch.manual_seed(3)
    whole = torch.empty(rows, width)
    nn.init.normal_(whole, std=0.1)
    after = torch.rand(3)
    for rank in range(4):
        torch.manual_seed(3)
        assert torch.equal(draw_rows(rows, width, 0.1, rank, 4), whole[rank::4])
        assert torch.equal(torch.rand(3), after)  # whatever is drawn next is the same


def test_every_row_has_one_owner_and_blocks_cover_them() -> None:
    sizes = [num_own(10, rank, 4) for rank in range(4)]
    assert sizes == [3, 3, 2, 2]
    blocks = list(blocks_of(own_rows(torch.zeros(3, 2), 10, 0, 4), bytes_=16))
    assert blocks == [(0, 2), (2, 3)]

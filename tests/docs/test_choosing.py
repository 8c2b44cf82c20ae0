"""What the page on choosing settings warns of is what the code does."""

from __future__ import annotations

import re

import torch

from celu.workset.weighting import CosineWeighting, StaleLosses
from docs.blocks import ROOT

OBTUSE = StaleLosses(torch.tensor([[-1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))  # 135 degrees


def test_it_warns_that_xi_above_90_reverses_rows_at_an_obtuse_angle() -> None:
    assert CosineWeighting(90).weigh_losses(OBTUSE).weights_B.item() == 0
    assert CosineWeighting(140).weigh_losses(OBTUSE).weights_B.item() < 0
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    assert re.search(r"^\| `xi` \|[^\n]*above 90[^\n]*un-learn", text, re.MULTILINE)
    assert re.search(r"Keep xi at 90 or less\.\*\*[^*]*opposite sign, and un-learns it", text)

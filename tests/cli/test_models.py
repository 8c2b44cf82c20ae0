"""`celu models` lists every built-in model, and its page shows what it prints."""

from __future__ import annotations

from pathlib import Path

from celu.cli.models import lines
from celu.models.built_in import BOTTOMS, TOPS
from celu.models.losses import LOSSES
from cli.test_commands import invoke

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_every_model_option_and_loss_is_listed() -> None:
    text = invoke("models")
    for name, built_in in [*BOTTOMS.items(), *TOPS.items()]:
        assert f"\n  {name}  {built_in.about}\n" in text
        for option, meaning in built_in.options.items():
            assert any(f"{option} = " in line and meaning in line for line in text.splitlines())
    for name in LOSSES:
        assert f"\n  {name}  " in text


def test_its_page_shows_what_it_prints() -> None:
    assert "\n".join(lines()) in PAGE.read_text(encoding="utf-8")

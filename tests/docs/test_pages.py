"""Every command in the docs and the README runs, and prints what is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from celu.testing import free_port
from docs.blocks import ROOT, read
from docs.shell import Reader

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOGETHER = {"two-companies-guest.md", "two-companies-host.md"}  # see test_two_companies
ALONE = [p for p in PAGES if p.name not in TOGETHER and any(b.is_run for b in read(p))]
LEFT_OUT = [block for page in PAGES for block in read(page) if block.is_left_out]


@pytest.mark.parametrize("page", ALONE, ids=lambda page: page.stem)
def test_a_reader_can_follow_the_page(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "reader", {"7443": str(free_port())})
    reader.follow(read(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_of_a_page_escapes(page: Path) -> None:
    assert [complaint for block in read(page) for complaint in block.complaints()] == []


def test_few_blocks_are_left_out_and_each_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    for block in LEFT_OUT:
        with capsys.disabled():
            sys.stdout.write(f"\n{block.where}: not run: {block.above}")
        assert "do not run" in block.above and "because" in block.above, block.where
    assert len(LEFT_OUT) <= 3

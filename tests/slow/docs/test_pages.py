"""Every command in the docs and the README runs and prints what the page shows."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from celu.testing import free_port
from docs.blocks import ROOT, read
from docs.shell import Reader

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IN_PAIRS = {"two-companies-guest.md", "two-companies-host.md"}  # see test_two_companies
WITH_COMMANDS = [p for p in PAGES if p.name not in IN_PAIRS and any(b.is_run for b in read(p))]
NOT_RUN = [block for page in PAGES for block in read(page) if block.is_not_run]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_a_reader_can_follow_the_page(page: Path, tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in ("7443", "8080")}
    reader = Reader(tmp_path / "reader", ports)
    reader.follow(read(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_in_a_block_that_is_run(page: Path) -> None:
    assert [problem for block in read(page) for problem in block.problems()] == []


def test_few_blocks_of_a_page_are_not_run_and_each_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for block in NOT_RUN:
        with capsys.disabled():
            sys.stdout.write(f"\n{block.where}: not run: {block.above}")
        assert "do not run" in block.above and "because" in block.above, block.where
    assert max(Counter(block.page for block in NOT_RUN).values()) <= 3

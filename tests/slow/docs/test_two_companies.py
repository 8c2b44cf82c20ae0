"""Both companies follow their pages at the same time, step by step, over TLS on loopback."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celu.config.party import read_party
from celu.testing import free_port
from docs.blocks import ROOT, Block, read
from docs.shell import BLOCK_S, Reader

PAGES = {name: read(ROOT / "docs" / f"two-companies-{name}.md") for name in ("guest", "host")}


def of_step(blocks: list[Block], step: int) -> list[Block]:
    return [block for block in blocks if block.step == step]


def test_both_pages_have_the_same_steps() -> None:
    guest, host = ({block.step for block in blocks} for blocks in PAGES.values())
    assert guest == set(range(1, 12))
    assert host == guest - {3}, "the contract comes from the guest"


@pytest.mark.parametrize(("name", "instead_of"), [("guest", "listen"), ("host", "connect")])
def test_the_gateway_settings_of_a_page_are_valid(
    name: str, instead_of: str, tmp_path: Path
) -> None:
    settings, gateway = of_step(PAGES[name], 4)
    (line,) = [line for line in settings.text.splitlines() if line.startswith(instead_of)]
    path = tmp_path / "party.toml"
    path.write_text(settings.text.replace(line, gateway.text))
    read = read_party(path)
    assert read.gateway or all(peer.gateway for peer in read.peers.values())


def test_both_companies_can_follow_their_pages(tmp_path: Path) -> None:
    ports = {"7443": str(free_port())}
    readers = {name: Reader(tmp_path / name, ports) for name in PAGES}
    with ThreadPoolExecutor(len(PAGES)) as both:
        for step in range(1, 12):
            todo = {name: of_step(blocks, step) for name, blocks in PAGES.items()}
            futures = [both.submit(readers[name].follow, todo[name]) for name in PAGES]
            for future in futures:
                future.result(BLOCK_S * 6)
            for name, other in (("guest", "host"), ("host", "guest")):
                for block in todo[name]:
                    for ours, theirs in block.sends:
                        shutil.copy(tmp_path / name / ours, tmp_path / other / theirs)

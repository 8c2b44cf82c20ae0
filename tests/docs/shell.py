"""A reader at a shell: one folder, the installed `celu`, and a deadline for every block."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docs.blocks import ROOT, Block
from docs.outputs import matches

BLOCK_S = 180.0
_HOST = re.compile(r"\b[a-z]+\.example\.com\b")


@dataclass
class Reader:
    """Does what the blocks of a page say, in a folder; `ports` replaces those of the page.

    Host names of example.com are this machine. Nothing else of a page is changed.
    """

    folder: Path
    ports: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "examples").symlink_to(ROOT / "examples")  # as in a checkout

    def follow(self, blocks: Sequence[Block]) -> None:
        """Do them in order; AssertionError where one fails or prints something else."""
        printed = ""
        for block in blocks:
            if block.is_run:
                printed = self.run(block)
            elif block.is_output:
                said = f"{block.where}: shown\n{block.text}\nprinted\n{printed}"
                assert matches(block.text, printed), said
            elif block.file is not None:
                (self.folder / block.file).write_text(self.here(block.text), encoding="utf-8")

    def run(self, block: Block) -> str:
        """What the block prints, errors included."""
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", self.here(block.text)],
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=BLOCK_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            raise AssertionError(f"{block.where}: not done in {BLOCK_S:g} s\n{printed}") from None
        assert process.returncode == 0, f"{block.where}: code {process.returncode}\n{printed}"
        return printed

    def here(self, text: str) -> str:
        """A page's text with hosts and ports of this machine."""
        text = _HOST.sub("localhost", text)
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text


def environment() -> dict[str, str]:
    """A reader's: this installation first, plain output, and one thread a process."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **plain, "PATH": path}

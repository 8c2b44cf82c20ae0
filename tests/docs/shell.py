"""Runs the blocks of a page in a shell: in one folder, with a deadline for every block."""

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

BLOCK_S = 1800.0
_HOST = re.compile(r"\b[a-z]+\.example\.com\b")


@dataclass
class Reader:
    """Follows the blocks of a page in a folder.

    `ports` replaces the ports of the page; host names of example.com become localhost. Nothing else
    is changed.
    """

    folder: Path
    ports: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "examples").symlink_to(ROOT / "examples")  # as in a checkout

    def follow(self, blocks: Sequence[Block]) -> None:
        """Follow them in order; raises AssertionError if one fails or its output differs."""
        printed = ""
        for block in blocks:
            if block.is_run:
                printed = self.run(block)
            elif block.is_output:
                message = f"{block.where}: the page shows\n{block.text}\nprinted\n{printed}"
                assert matches(block.text, printed), message
            elif block.file is not None:
                (self.folder / block.file).write_text(self.localize(block.text), encoding="utf-8")

    def run(self, block: Block) -> str:
        """Run a block and return its output, stderr included."""
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", self.localize(block.text)],
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
            message = f"{block.where}: did not finish in {BLOCK_S:g} s\n{printed}"
            raise AssertionError(message) from None
        assert process.returncode == 0, f"{block.where}: exit code {process.returncode}\n{printed}"
        return printed

    def localize(self, text: str) -> str:
        """Replace host names and ports of a page by those of this machine."""
        text = _HOST.sub("localhost", text)
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text


def environment() -> dict[str, str]:
    """Environment variables: this installation first, plain output, one thread per process."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **plain, "PATH": path}

"""The fenced blocks of a page, and what a reader does with each.

    ```sh                run it in a shell
    ```sh by=TEST        the test of this file runs it, where the tools are that it needs
    ```sh not-run        a reader runs it, the tests do not; the paragraph above says why
    ```text              right after `sh`: its output, compared by `outputs.matches`
    ```toml file=NAME    write it to this file (any language)
    ```text sends        each line "FILE -> NAME": send FILE to the other company, as NAME

Any other block is for reading only and must not contain commands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
_COMMAND = re.compile(r"^\s*(\$ |celu |python |pip |git |scripts/|\.venv/)")


@dataclass(frozen=True)
class Block:
    """One fenced block: its info string, text and position, and the step that it belongs to."""

    info: tuple[str, ...]
    text: str
    page: str
    line: int
    step: int  # the number in the `## 3. Title` above it; 0 before the first
    above: str  # the paragraph before it
    follows_run: bool

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.info == ("sh",)

    @property
    def is_not_run(self) -> bool:
        return self.info == ("sh", "not-run")

    @property
    def by(self) -> str | None:
        """The file of the test that runs it."""
        is_by = len(self.info) == 2 and self.info[0] == "sh" and self.info[1].startswith("by=")
        return self.info[1].removeprefix("by=") if is_by else None

    @property
    def is_output(self) -> bool:
        return self.info == ("text",) and self.follows_run

    @property
    def file(self) -> str | None:
        name = self.info[1] if len(self.info) == 2 else ""
        return name.removeprefix("file=") if name.startswith("file=") else None

    @property
    def sends(self) -> list[tuple[str, str]]:
        """The files to send to the other company, and their names there."""
        if self.info != ("text", "sends"):
            return []
        pairs = [line.split(" -> ") for line in self.text.splitlines()]
        return [(ours.strip(), theirs.strip()) for ours, theirs in pairs]

    def problems(self) -> list[str]:
        """An unknown info string, or commands in a block that is not run."""
        shows = self.file or self.sends or len(self.info) == 1
        if not (self.is_run or self.is_not_run or self.by or shows):
            return [f"{self.where}: unknown info string {' '.join(self.info)!r}"]
        if self.by and Path(self.page).name not in (ROOT / self.by).read_text(encoding="utf-8"):
            return [f"{self.where}: {self.by} does not read this page"]
        has_commands = any(map(_COMMAND.match, self.text.splitlines()))
        if has_commands and not (self.is_run or self.is_not_run or self.by or self.is_output):
            return [f"{self.where}: commands in a block that is not run; mark it sh"]
        return []


def read(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    blocks: list[Block] = []
    step, above, last_kind = 0, "", ""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    for i, token in enumerate(tokens):
        if token.type == "inline":
            above, last_kind = " ".join(token.content.split()), "text"
            heading = re.match(r"(\d+)\. ", above)
            if tokens[i - 1].type == "heading_open" and tokens[i - 1].tag == "h2":
                step = int(heading[1]) if heading else step
        elif token.type == "fence":
            assert token.map is not None
            info = tuple(token.info.split())
            name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
            line = token.map[0] + 1
            blocks.append(Block(info, token.content, name, line, step, above, last_kind == "run"))
            last_kind = "run" if info == ("sh",) else "block"
    return blocks

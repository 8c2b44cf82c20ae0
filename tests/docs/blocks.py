"""The fenced blocks of a page, and what a reader is to do with each.

    ```sh                run it in a shell
    ```sh not-run        a reader runs it, the tests do not; the paragraph above says why
    ```text              right after `sh`: what it prints, as `outputs.matches` reads it
    ```toml file=NAME    write it to this file (whatever the language)
    ```text sends        each line "FILE -> NAME": give the other company FILE, there called NAME

Any other block is for reading only, and may not look like commands.
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
    """One fence: its info string, its text, where it stands, and under which step."""

    info: tuple[str, ...]
    text: str
    page: str
    line: int
    step: int  # the number that its `## 3. Title` begins with; 0 before the first
    above: str  # the last words before it
    follows_a_run: bool

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.info == ("sh",)

    @property
    def is_left_out(self) -> bool:
        return self.info == ("sh", "not-run")

    @property
    def is_output(self) -> bool:
        return self.info == ("text",) and self.follows_a_run

    @property
    def file(self) -> str | None:
        name = self.info[1] if len(self.info) == 2 else ""
        return name.removeprefix("file=") if name.startswith("file=") else None

    @property
    def sends(self) -> list[tuple[str, str]]:
        """Which files to give to the other company, and what they are called there."""
        if self.info != ("text", "sends"):
            return []
        pairs = [line.split(" -> ") for line in self.text.splitlines()]
        return [(ours.strip(), theirs.strip()) for ours, theirs in pairs]

    def complaints(self) -> list[str]:
        """What a reader or these tests could not make sense of."""
        known = self.is_run or self.is_left_out or self.file or self.sends or len(self.info) == 1
        if not known:
            return [f"{self.where}: an info string that means nothing: {' '.join(self.info)!r}"]
        looks_run = any(map(_COMMAND.match, self.text.splitlines()))
        if looks_run and not (self.is_run or self.is_left_out or self.is_output):
            return [f"{self.where}: commands in a block that nobody runs; mark it sh"]
        return []


def read(path: Path) -> list[Block]:
    """A page's fences, in order."""
    blocks: list[Block] = []
    step, above, last_kind = 0, "", ""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    for i, token in enumerate(tokens):
        if token.type == "inline":
            above, last_kind = " ".join(token.content.split()), "words"
            heading = re.match(r"(\d+)\. ", above)
            if tokens[i - 1].type == "heading_open" and tokens[i - 1].tag == "h2":
                step = int(heading[1]) if heading else step
        elif token.type == "fence":
            assert token.map is not None
            info = tuple(token.info.split())
            name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
            place = (name, token.map[0] + 1, step)
            blocks.append(Block(info, token.content, *place, above, last_kind == "run"))
            last_kind = "run" if info == ("sh",) else "block"
    return blocks

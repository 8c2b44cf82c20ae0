"""Compares the output of a command with the one that its page shows.

The lines must be equal and in the same order; `...` within a line matches any text, and a line of
`...` alone matches any number of lines. The amount of whitespace is ignored.
"""

from __future__ import annotations

import re


def matches(shown: str, printed: str) -> bool:
    """Whether the output matches the one on the page."""
    pattern = ""
    for line in map(str.split, shown.strip().splitlines()):
        if line == ["..."]:
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += r"[^\n]*?".join(map(re.escape, " ".join(line).split("..."))) + r"\n"
    lines = "".join(" ".join(line.split()) + "\n" for line in printed.strip().splitlines())
    return re.fullmatch(pattern, lines) is not None

"""Whether a command printed what its page shows.

Each line shown must be one that was printed, in this order, with `...` for whatever stands there.
A line of `...` alone stands for any lines; without it nothing may come in between. Blanks at the
ends of lines, and how many there are in a row, do not count.
"""

from __future__ import annotations

import re


def matches(shown: str, printed: str) -> bool:
    """Whether the output is as the page shows it."""
    pattern = ""
    for line in map(str.split, shown.strip().splitlines()):
        if line == ["..."]:
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += r"[^\n]*?".join(map(re.escape, " ".join(line).split("..."))) + r"\n"
    lines = "".join(" ".join(line.split()) + "\n" for line in printed.strip().splitlines())
    return re.fullmatch(pattern, lines) is not None

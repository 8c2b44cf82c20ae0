"""Makes foreign text printable: a peer's, or a file's, such as the column names of a CSV header.

A terminal acts on control characters, so such text could hide, forge or rewrite what an operator
reads. It does not escape markup; `celu.cli.console` does.
"""

from __future__ import annotations


def printable(text: str, max_chars: int = 1000) -> str:
    """A peer's text on one line: truncated, and with "?" for characters that are not printable."""
    return "".join(c if c.isprintable() else "?" for c in text[:max_chars])


def printable_lines(text: str) -> str:
    """Text with "?" for characters that are not printable, except line breaks."""
    if text.isprintable():
        return text
    return "\n".join(printable(line, len(line)) for line in text.split("\n"))

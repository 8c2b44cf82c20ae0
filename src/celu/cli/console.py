"""The console of all commands: no output can end a command, and no text can control the terminal.

Output that cannot be written (a closed pipe, a full disk) is dropped from then on: a run that
trains must not end because nobody reads its progress. Text within markup still needs `escape`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import rich.console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from celu.text import printable_lines


class Console(rich.console.Console):
    """A rich console on stdout or stderr, or on `file`."""

    def __init__(
        self, *, stderr: bool = False, soft_wrap: bool = False, file: TextIO | None = None
    ) -> None:
        stream = file or (sys.stderr if stderr else sys.stdout)
        super().__init__(
            file=cast(TextIO, _Output(stream)),
            soft_wrap=soft_wrap,
            emoji=False,  # ":x:" in a name is not an emoji
        )

    def echo(self, text: str) -> None:
        """Print text as it is: no markup, no colours, no line breaks of our own."""
        self.print(text, markup=False, highlight=False, soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string, a table's cell or a title; control characters in it become "?"."""
        return super().render_str(printable_lines(text), **options)


def narrow_table(title: str, *, blank_above: bool = True) -> Table:
    """A table whose rows fit into 80 columns, without columns yet; `title` is markup."""
    above = "\n" if blank_above else ""
    return Table(
        title=f"{above}[bold]{title}[/bold]",
        title_justify="left",
        title_style="",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


class _Output:
    """A text stream whose failures are silent: after the first one, everything is dropped."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None if the process was started with it closed

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("the stream is closed")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                known = text.encode(self.encoding, "replace").decode(self.encoding)
                self._stream.write(known)
            except (OSError, ValueError):  # ValueError: the stream was closed
                self._drop()
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._drop()

    def _drop(self) -> None:
        """Write no more; what is buffered goes to /dev/null, or the flush at exit would fail."""
        stream, self._stream = self._stream, None
        if stream not in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            return
        with suppress(OSError, ValueError, AttributeError):
            number = cast(TextIO, stream).fileno()
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, number)
            os.close(devnull)

"""The result of a bench: a table to read, and `result.json` to follow figures over time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from celu.run_folder import hardware, versions

Log = Callable[[str], None]


@dataclass
class BenchResult:
    """Rows of a table, and figures by names that never change."""

    bench: str
    seeds: list[int]
    rows: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    profile: str | None = None  # of a bench with several sizes

    def show(self, console: Console) -> None:
        """Print the rows, the figures and the notes."""
        table = Table(title=f"bench {self.bench}")
        columns = self._columns()
        for column in columns:
            table.add_column(column, overflow="fold")  # never truncate the name of a figure
        for row in self.rows:
            table.add_row(*(_cell(row.get(column)) for column in columns))
        console.print(table)
        for name, value in self.figures.items():
            console.print(f"{name} = {_cell(value)}")
        for note in self.notes:
            console.print(note, soft_wrap=True)

    def write(
        self, folder: Path, name: str = "result", environment: Mapping[str, Any] | None = None
    ) -> Path:
        """Write NAME.json into a folder and return its path.

        `environment` has the versions and hardware of the measurements; default: this machine's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.json"
        content = {
            "bench": self.bench,
            "command": " ".join(["scripts/bench", *sys.argv[1:]]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **(environment or {"versions": versions(), "hardware": hardware()}),
            "seeds": self.seeds,
            **({} if self.profile is None else {"profile": self.profile}),
            "rows": self.rows,
            "figures": self.figures,
            "notes": self.notes,
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return path

    def write_markdown(self, folder: Path, name: str, images: Sequence[Path] = ()) -> Path:
        """Write the same as Markdown, with links to the SVG images in the folder."""
        columns = self._columns()
        cells = [columns, ["---"] * len(columns)]
        cells += [[_cell(row.get(column, "")) for column in columns] for row in self.rows]
        figures = [["figure", "value"], ["---", "---"]]
        figures += [[f"`{figure}`", _cell(value)] for figure, value in self.figures.items()]
        shown = [f"![{path.stem}]({path.name})" for path in images if path.suffix == ".svg"]
        blocks = [
            f"# bench {self.bench}",
            *shown,
            "\n".join(f"| {' | '.join(row)} |" for row in cells),
            "\n".join(f"| {' | '.join(row)} |" for row in figures),
            *self.notes,
        ]
        path = folder / f"{name}.md"
        path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
        return path

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(key for row in self.rows for key in row))


def _cell(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_cell(v) for v in value)
    return str(value)

"""`celu evaluate`: how good a model's scores are, and how much better than another model's."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from celu.cli.console import Console, narrow_table
from celu.errors import ConfigError

if TYPE_CHECKING:
    from celu.metrics.own import MetricLike
    from celu.scores.result import Figure, Group, ScoreEvaluation


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(evaluate)


def evaluate(
    scores: Annotated[
        Path, typer.Argument(help="A scores file that celu predict wrote, or a run folder's own.")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(help="The labels: Parquet, CSV or TSV. A run folder's scores have their own."),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help='A column of the labels file, or "hosts" of the scores: one evaluation for each '
            "of its values."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="The scores file of another model, to compare on the same rows."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="A metric of your own, module:name, besides the built-in ones."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write an HTML page to this file.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures to this file, as JSON.")
    ] = None,
    id_column: Annotated[str, typer.Option("--id", help="The id column of the labels.")] = "id",
    label_column: Annotated[str, typer.Option("--label", help="The label column.")] = "label",
    weight_column: Annotated[
        str | None,
        typer.Option("--weight", help="A column of the labels: how much each row counts."),
    ] = None,
    resamples: Annotated[
        int, typer.Option(help="Resamples of the rows for the intervals; 0 for no intervals.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the resamples.")] = 1,
    min_rows: Annotated[
        int, typer.Option(min=1, help="Slices with fewer rows get a note and no figures.")
    ] = 100,
) -> None:
    """Evaluate a model's scores: metrics with 95 % intervals, calibration, slices, lift.

    The guest runs this alone, without a network. Rows are joined by id; rows without a label or
    without a score are counted. Intervals are from a bootstrap over rows. With
    [bold]--against[/bold], both models are evaluated on the rows that both score, and the lift has
    an interval of its own, from the same resamples. Page and JSON hold figures and the values of
    the [bold]--by[/bold] columns, no ids.
    """
    for option, path in (("--out", out), ("--json", json_file)):
        if path is not None and not path.resolve().parent.is_dir():
            raise ConfigError(f"{option}: the folder of {path} does not exist; choose another file")
    from celu.page.file import write
    from celu.scores.evaluation import evaluate as evaluate_files
    from celu.scores.page import render

    console = Console()
    with console.status("reading") as status:
        found = evaluate_files(
            scores,
            labels,
            by=by or [],
            against=against,
            id_column=id_column,
            label_column=label_column,
            weight_column=weight_column,
            metrics=_own_metrics(metric or []),
            resamples=resamples,
            seed=seed,
            min_rows=min_rows,
            progress=lambda text: status.update(escape(text)),
        )
    _show(console, found)
    if json_file is not None:
        write(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n", json_file, "--json")
    if out is not None:
        write(render(found), out)
    for path in (json_file, out):
        if path is not None:
            console.print(f"written to {escape(str(path))}", soft_wrap=True, highlight=False)


def _own_metrics(uses: Sequence[str]) -> list[MetricLike]:
    if not uses:
        return []
    from celu.models.building import find_metrics  # imports torch, which takes seconds

    return find_metrics(uses, "--metric", Path.cwd())


def _show(console: Console, found: ScoreEvaluation) -> None:
    rows = found.rows
    weighted = ", by their weights" if found.weighted else ""
    console.echo(f"{found.model}: {found.output}, {rows.evaluated:,} rows evaluated{weighted}")
    left_out = {
        "scored rows without a label": rows.without_label,
        "labelled rows without a score": rows.without_score,
        "labelled rows that only one of the two files scores": rows.not_in_both,
    }
    for what, count in left_out.items():
        if count:
            console.echo(f"not evaluated: {count:,} {what}")
    console.print(_metrics_table(found))
    if found.overall.note:
        console.echo(found.overall.note)
    if found.against_model is not None:
        title = f"lift over {escape(str(found.against_model))} on the same rows"
        console.print(lift_table(found, title))
    console.print(_bins_table(found))
    for column in dict.fromkeys(group.column for group in found.slices):
        _show_groups(console, found, [g for g in found.slices if g.column == column])
    if found.fallback:
        _show_groups(console, found, found.fallback)
    for rest in found.rest:
        console.echo(
            f"{rest.column}: {rest.slices:,} smaller values with {rest.rows:,} rows are not shown"
        )


def _metrics_table(found: ScoreEvaluation) -> Table:
    from celu.metrics.names import title_of

    intervals = f"95 % intervals from {found.resamples:,} resamples"
    table = narrow_table(intervals if found.resamples else "metrics")
    table.add_column("metric")
    _add_columns(table, _VALUE)
    for name, figure in found.overall.metrics.items():
        table.add_row(title_of(name), *_value_cells(figure))
    if found.details.calibration_error is not None:
        table.add_row("calibration error", _number(found.details.calibration_error), "")
    return table


def lift_table(
    found: ScoreEvaluation, title: str, models: tuple[str, str] = ("value", "other")
) -> Table:
    """The metrics of two models, and the lift of the first over the second."""
    from celu.metrics.names import title_of

    table = narrow_table(title)
    table.add_column("metric")
    _add_columns(table, (*models, *_LIFT[2:]))
    for name in found.overall.lift:
        table.add_row(title_of(name), *_lift_cells(found.overall, name))
    other = None if found.against_details is None else found.against_details.calibration_error
    if found.details.calibration_error is not None and other is not None:
        error = found.details.calibration_error
        lift = _number(error - other, signed=True)
        table.add_row("calibration error", _number(error), _number(other), lift, "", "")
    return table


def _bins_table(found: ScoreEvaluation) -> Table:
    """The bins of the model itself; those of another model are on the page and in the JSON."""
    titles = {
        "binary": ("calibration", "mean score", "observed rate"),
        "multiclass": ("calibration of the top class", "mean probability", "share correct"),
        "regression": ("deciles of the score", "mean score", "mean label"),
    }
    title, score, label = titles[found.output]
    table = narrow_table(title)
    for heading in ("rows", score, label, "95 % interval"):
        table.add_column(heading, justify="right")
    for one in found.details.bins:
        bounds = _interval(one.low, one.high)
        table.add_row(f"{one.rows:,}", _number(one.mean_score), _number(one.mean_label), bounds)
    return table


def _show_groups(console: Console, found: ScoreEvaluation, groups: Sequence[Group]) -> None:
    from celu.metrics.names import title_of

    main, column = next(iter(found.overall.metrics)), str(groups[0].column)
    table = narrow_table(escape(f"{title_of(main)} by {column}"))
    table.add_column(escape(column), overflow="fold")
    table.add_column("rows", justify="right")
    headings = _VALUE if found.against_model is None else _LIFT
    _add_columns(table, headings)
    if any(group.note for group in groups):
        table.add_column("note")
    for group in groups:
        cells = [""] * len(headings)
        if group.metrics:
            is_alone = found.against_model is None
            cells = _value_cells(group.metrics[main]) if is_alone else _lift_cells(group, main)
        notes = [group.note] if group.note else []
        table.add_row(escape(str(group.value)), f"{group.rows:,}", *cells, *notes)
    console.print(table)


_VALUE = ("value", "95 % interval")
_LIFT = ("value", "other", "lift", "95 % interval", "verdict")


def _add_columns(table: Table, headings: Sequence[str]) -> None:
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading == "verdict" else "right"
        table.add_column(heading, justify=justify, no_wrap=True)


def _value_cells(figure: Figure) -> list[str]:
    return [_number(figure.value), _interval(figure.low, figure.high)]


def _lift_cells(group: Group, name: str) -> list[str]:
    lift = group.lift[name]
    colour = {"better": "green", "worse": "red"}.get(lift.verdict, "dim")
    return [
        _number(group.metrics[name].value),
        _number(group.against[name].value),
        _number(lift.value, signed=True),
        _interval(lift.low, lift.high),
        f"[{colour}]{lift.verdict}[/{colour}]",
    ]


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{_number(low)} to {_number(high)}"


def _number(value: float | None, *, signed: bool = False) -> str:
    """Four decimals for what may be a probability, four digits for larger values."""
    if value is None or not math.isfinite(value):
        return "–"
    sign = "+" if signed else ""
    return f"{value:{sign}.4f}" if abs(value) < 10 else f"{value:{sign}.5g}"

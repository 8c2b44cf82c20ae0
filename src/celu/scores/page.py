"""The page of an evaluation: one HTML file that loads nothing from a network."""

from __future__ import annotations

from celu.metrics.names import title_of
from celu.page.assemble import asset, standalone_page
from celu.scores.result import ScoreEvaluation


def render(evaluation: ScoreEvaluation) -> str:
    """The page, as HTML. It holds figures, and the values of the columns that it is sliced by."""
    body, script = (asset("celu.scores", f"evaluation.{ending}") for ending in ("html", "js"))
    titles = {name: title_of(name) for name in evaluation.metrics}
    data = {**evaluation.to_json(), "titles": titles}
    return standalone_page(f"Evaluation of {evaluation.model}", body, data, script)

"""`scripts/bench paper`: measures the parts of the study, draws their figures and writes both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from bench.paper import (
    beyond,
    by_hand,
    compensated,
    drawing,
    run_report,
    similarity,
    table2,
    theory,
    time_to_auc,
)
from bench.paper.drawing import Artefact
from bench.paper.profiles import PROFILES
from bench.paper.runs import MissingRuns, Request, RunCache
from bench.paper.stores import Stores
from bench.paper.study import Study
from bench.report import BenchResult, Log
from celu.errors import ConfigError

Part = Callable[[Study], tuple[BenchResult, Sequence[Artefact]]]
PARTS: dict[str, Part] = {
    "table2": table2.measure,
    "similarity": similarity.measure,
    "time": time_to_auc.measure,
    "theory": theory.measure,
    "beyond": beyond.measure,
    "together": beyond.measure_together,
    "compensated": compensated.measure,
    "auto": by_hand.measure,
    "report": run_report.measure,
}
_NO_MATPLOTLIB = (
    'matplotlib is not installed. Install it (pip install "celu[figures]") and start the same '
    "command again: finished runs are read from runs.jsonl, which you may also copy to another "
    "machine"
)


def bench_paper(
    log: Log,
    out: Path,
    *,
    parts: Sequence[str] = (),
    profile: str = "smoke",
    seeds: Sequence[int] = (),
    workers: int = 1,
    data: Path | None = None,
) -> Iterator[tuple[BenchResult, list[Path]]]:
    """Yield each part (default: all) with the files it wrote, as soon as its runs are done.

    Which runs a part requests may depend on the results of earlier ones. So we ask every part for
    its missing runs, execute them in one batch, so that no worker idles at the end of a part, and
    ask again. Raises ConfigError for unknown names and missing data before anything is measured.
    """
    for option, names, known in (("part", parts, PARTS), ("profile", [profile], PROFILES)):
        for name in names:
            if name not in known:
                raise ConfigError(f"--{option}: expected one of {', '.join(known)}; got {name!r}")
    settings = PROFILES[profile]
    if settings.needs_samples and data is None:
        raise ConfigError(
            f"--profile {profile} trains on samples of real click data, which celu does not ship: "
            "expected --data DIR with these files; or choose --profile smoke"
        )
    if not drawing.can_draw():
        log(f"no figures will be drawn: {_NO_MATPLOTLIB}")
    torch.set_num_threads(1)
    with RunCache(out, settings, Stores(out / "stores", data, log), workers, log) as runs:
        remaining = list(dict.fromkeys(parts or PARTS))
        while remaining:
            missing: list[Request] = []
            for name in list(remaining):
                study = Study(settings, tuple(seeds) or settings.seeds, runs)
                try:
                    with runs.cached_only():
                        result, artefacts = PARTS[name](study)
                except MissingRuns as error:
                    missing += error.requests
                    continue
                remaining.remove(name)
                yield result, _write(name, study, result, artefacts, out)
            runs.run(missing)
    if not drawing.can_draw():
        raise ConfigError(f"everything is measured, but no figure is drawn: {_NO_MATPLOTLIB}")


def _write(
    name: str, study: Study, result: BenchResult, artefacts: Sequence[Artefact], out: Path
) -> list[Path]:
    result.notes += study.failures
    saved = [path for one in artefacts for path in one.save(out, name)]
    written = result.write(out, name, study.runs.environment())
    return [written, result.write_markdown(out, name, saved), *saved]

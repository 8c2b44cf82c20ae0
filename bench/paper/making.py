"""The whole study: parts by name, each measured, drawn and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from bench.paper import beyond, drawing, over_time, recorded, similarity, table2, theory
from bench.paper.drawing import Artefact
from bench.paper.profiles import PROFILES
from bench.paper.runs import Asked, Lacking, Runs
from bench.paper.stores import Stores
from bench.paper.study import Study
from bench.report import BenchResult, Say
from celu.errors import ConfigError

Part = Callable[[Study], tuple[BenchResult, Sequence[Artefact]]]
PARTS: dict[str, Part] = {
    "table2": table2.measure,
    "similarity": similarity.measure,
    "time": over_time.measure,
    "theory": theory.measure,
    "beyond": beyond.measure,
    "report": recorded.measure,
}
_NO_MATPLOTLIB = (
    'expected matplotlib, found none; install it (pip install "celu[figures]") and start again '
    "with the same --out, here or where runs.jsonl was copied to: no run is done twice"
)


def bench_paper(
    say: Say,
    out: Path,
    *,
    parts: Sequence[str] = (),
    profile: str = "smoke",
    seeds: Sequence[int] = (),
    workers: int = 1,
    data: Path | None = None,
) -> Iterator[tuple[BenchResult, list[Path]]]:
    """Each part, once its runs are done, with the files that it wrote; all where none is named.

    What a part asks for may depend on what came of its earlier runs. So all parts are asked what
    they lack, that is run, all together, so that no processor waits for the last run of one part,
    and they are asked again. Raises ConfigError for what is not there, before anything is measured.
    """
    for kind, given, known in (("part", parts, PARTS), ("profile", [profile], PROFILES)):
        for name in given:
            if name not in known:
                raise ConfigError(f"--{kind}: expected one of {', '.join(known)}; got {name!r}")
    size = PROFILES[profile]
    if size.needs_samples and data is None:
        raise ConfigError(
            f"--profile {profile} trains on samples of real click data, which celu does not ship: "
            "expected --data DIR with them, got none; name it, or choose --profile smoke"
        )
    if not drawing.can_draw():
        say(f"no figures will be drawn: {_NO_MATPLOTLIB}")
    torch.set_num_threads(1)
    with Runs(out, size, Stores(out / "stores", data, say), workers, say) as runs:
        left = list(dict.fromkeys(parts or PARTS))
        while left:
            lacking: list[Asked] = []
            for name in list(left):
                study = Study(size, tuple(seeds) or size.seeds, runs)
                try:
                    with runs.only_known():
                        result, artefacts = PARTS[name](study)
                except Lacking as error:
                    lacking += error.asked
                    continue
                left.remove(name)
                yield result, _write(name, study, result, artefacts, out)
            runs.run(lacking)
    if not drawing.can_draw():
        raise ConfigError(f"all was measured and nothing drawn: {_NO_MATPLOTLIB}")


def _write(
    name: str, study: Study, result: BenchResult, artefacts: Sequence[Artefact], out: Path
) -> list[Path]:
    result.notes += study.ended
    saved = [path for one in artefacts for path in one.save(out, name)]
    written = result.write(out, name, study.runs.made_with())
    return [written, result.write_markdown(out, name, saved), *saved]

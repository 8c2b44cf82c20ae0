"""Part `report`: a few of the study's runs as run folders, and the page of `celu report` for them.

The paper's figure 1 from recorded runs: what each party did when, how busy the link was, how
similar the stale statistics were. The files of a run folder are cached in `runs.jsonl` with the
other results, so the folders and the page can be written on another machine.
"""

from __future__ import annotations

import base64
import secrets
import tempfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import celu
from bench.pair import VANILLA, Pair
from bench.paper.drawing import Artefact
from bench.paper.profiles import Task
from bench.paper.runs import Values
from bench.paper.study import Study, tune
from bench.paper.training import CELU, FEDBCD, TOGETHER, Train
from bench.report import BenchResult
from celu.page.file import write
from celu.record.run import RunRecord
from celu.record.summary import summarize
from celu.report.render import render
from celu.run_folder import RunFolder

TASK = "criteo"
_FILES = ("settings.json", "events.jsonl", "summary.json")
# By folder name: a method, and the other fields in which the run differs from vanilla.
_RUNS: dict[str, tuple[celu.Method, dict[str, Any]]] = {
    "vanilla": (VANILLA, {}),
    "fedbcd": (FEDBCD, {}),
    "celu": (CELU, {}),
    "together": (TOGETHER, {"codec": "4bit"}),
}


@dataclass(frozen=True)
class RecordedTraining:
    """A training run that returns the files of its run folders, without the weights."""

    kind: ClassVar[str] = "Recorded"
    train: Train

    def __str__(self) -> str:
        """A line for the log."""
        return f"{self.train}, recorded"

    @property
    def task(self) -> str:
        """See `RunSpec`."""
        return self.train.task

    @property
    def cost(self) -> float:
        """See `RunSpec`."""
        return self.train.cost

    def execute(self, task: Task, pair: Pair, seed: int) -> Values:
        """See `RunSpec`: the files of each party's folder, compressed."""
        run = self.train.prepare(task, pair, seed)
        simulated = {
            "run": secrets.token_hex(16),
            "link": run.shape.link.model_dump(mode="json"),
            "speed": round(run.speed, 4),
        }
        with tempfile.TemporaryDirectory() as temporary:
            folders = {
                name: RunFolder(
                    Path(temporary, name),
                    {
                        "job": run.job.model_dump(mode="json"),
                        "party": {"name": name},
                        "simulated": simulated,
                    },
                )
                for name in (run.job.guest, *run.job.hosts)
            }
            ended = run.train({name: folder.emit for name, folder in folders.items()})
            for folder in folders.values():
                folder.finish({"status": ended or "done"})
            return {"folders": {name: _pack(folder.path) for name, folder in folders.items()}}


def measure(study: Study) -> tuple[BenchResult, list[Artefact]]:
    """Vanilla, FedBCD, CELU and everything combined: all rounds, with the first seed."""
    seed = study.seeds[0]
    baseline = tune(study, TASK, "paper")
    result = BenchResult("paper report", [seed], profile=study.profile.name)
    specs = {
        name: RecordedTraining(replace(baseline.vanilla, method=method, **more))
        for name, (method, more) in _RUNS.items()
    }
    done = study.runs.run((spec, seed) for spec in specs.values())
    packed = {name: done[spec, seed]["folders"] for name, spec in specs.items()}
    with tempfile.TemporaryDirectory() as temporary:
        for record in _unpack(packed, Path(temporary)):
            summary = summarize(record)
            result.rows.append(
                {
                    "run": record.path.parent.name,
                    "party": summary["party"],
                    "seconds": summary["seconds"],
                    "of them waiting": summary["waiting_share"],
                    "MB sent": summary["bytes_sent"] / 1e6,
                    "local steps": summary["local_steps"],
                    "AUC at the end": summary["final"],
                }
            )
    waited = {row["run"]: row["of them waiting"] for row in result.rows if "guest" in row["party"]}
    result.figures |= {f"{name}_guest_waits": share for name, share in waited.items()}
    result.notes += [
        f"{baseline.task.description}, all rounds, with the first seed. together: local steps by "
        "the guest only, 4 rounds in flight, a 4-bit codec. Seconds are virtual and include "
        "evaluations.",
        baseline.description,
        "To write the page again: celu report report/*/*",
    ]
    return result, [_Page(packed)]


@dataclass(frozen=True)
class _Page:
    """The run folders and their report page; an `Artefact`."""

    packed: dict[str, dict[str, dict[str, str]]]

    def save(self, folder: Path, part: str) -> list[Path]:
        """Write both, replacing the files of an earlier call."""
        records = _unpack(self.packed, folder / part)
        page = folder / f"{part}.html"
        write(render(records), page)
        return [page]


def _pack(folder: Path) -> dict[str, str]:
    return {
        name: base64.b64encode(zlib.compress((folder / name).read_bytes(), 9)).decode()
        for name in _FILES
    }


def _unpack(packed: dict[str, dict[str, dict[str, str]]], into: Path) -> list[RunRecord]:
    """Write the run folders `into`/RUN/PARTY and open them."""
    records = []
    for run, parties in packed.items():
        for party, files in parties.items():
            folder = into / run / party
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / name).write_bytes(zlib.decompress(base64.b64decode(text)))
            records.append(RunRecord(folder))
    return records

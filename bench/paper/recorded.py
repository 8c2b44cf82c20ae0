"""Part `report`: a few of the study's runs as run folders, and `celu report` of them.

The paper's figure 1 from runs as they were: what each party did when, how full the line was, how
similar the stale statistics were. A folder's files are kept with the other runs, so that those of
another machine are written, and reported, here.
"""

from __future__ import annotations

import base64
import secrets
import tempfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import celu
from bench.pair import VANILLA, Pair
from bench.paper.drawing import Artefact
from bench.paper.profiles import Task
from bench.paper.runs import Values
from bench.paper.study import Study, tune
from bench.paper.training import CELU, FEDBCD, TOGETHER, Train
from bench.report import BenchResult
from celu.record.run import RunRecord
from celu.record.summary import summarize
from celu.report.render import render, write
from celu.run_folder import RunFolder

TASK = "criteo"
_FILES = ("settings.json", "events.jsonl", "summary.json")
# By the name of its folder: a method, and what else differs from vanilla.
_RUNS: dict[str, tuple[celu.Method, dict[str, Any]]] = {
    "vanilla": (VANILLA, {}),
    "fedbcd": (FEDBCD, {}),
    "celu": (CELU, {}),
    "together": (TOGETHER, {"codec": "4bit"}),
}


@dataclass(frozen=True)
class Recorded:
    """A training run of which everything is kept that a run folder holds, but the weights."""

    train: Train

    def __str__(self) -> str:
        """For a reader of the screen."""
        return f"{self.train}, recorded"

    @property
    def task(self) -> str:
        """See `Work`."""
        return self.train.task

    @property
    def cost(self) -> float:
        """See `Work`."""
        return self.train.cost

    def perform(self, task: Task, pair: Pair, seed: int) -> Values:
        """See `Work`: by party, its folder's files, packed."""
        run = self.train.prepare(task, pair, seed)
        simulated = {
            "run": secrets.token_hex(16),
            "link": run.shape.line.model_dump(mode="json"),
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
            ended = run.go({name: folder.emit for name, folder in folders.items()})
            for folder in folders.values():
                folder.finish({"status": ended or "done"})
            return {"folders": {name: _packed(folder.path) for name, folder in folders.items()}}


def measure(study: Study) -> tuple[BenchResult, list[Artefact]]:
    """Vanilla, FedBCD, CELU and the best of both worlds, all rounds, the first seed."""
    seed = study.seeds[0]
    baseline = tune(study, TASK, "paper")
    result = BenchResult("paper report", [seed], profile=study.profile.name)
    works = {
        name: Recorded(replace(baseline.vanilla, method=method, **more))
        for name, (method, more) in _RUNS.items()
    }
    done = study.runs.run((work, seed) for work in works.values())
    packed = {name: done[work, seed]["folders"] for name, work in works.items()}
    with tempfile.TemporaryDirectory() as temporary:
        for record in _unpack(packed, Path(temporary)):
            told = summarize(record)
            result.rows.append(
                {
                    "run": record.path.parent.name,
                    "party": told["party"],
                    "seconds": told["seconds"],
                    "of them waiting": told["waiting_share"],
                    "MB sent": told["bytes_sent"] / 1e6,
                    "local steps": told["local_steps"],
                    "AUC at the end": told["final"],
                }
            )
    waited = {row["run"]: row["of them waiting"] for row in result.rows if "guest" in row["party"]}
    result.figures |= {f"{name}_guest_waits": share for name, share in waited.items()}
    result.notes += [
        f"{baseline.task.words}, all rounds, the first seed. together: local steps by the guest "
        "alone, 4 rounds in flight, a 4-bit code. Seconds are virtual, those of evaluations too.",
        baseline.words,
        "Once more by hand: celu report report/*/*",
    ]
    return result, [_Page(packed)]


@dataclass(frozen=True)
class _Page:
    """The run folders, and their report; an `Artefact`."""

    packed: dict[str, dict[str, dict[str, str]]]

    def save(self, folder: Path, part: str) -> list[Path]:
        """Write both; folders of an earlier time are replaced."""
        records = _unpack(self.packed, folder / part)
        page = folder / f"{part}.html"
        write(render(records), page)
        return [page]


def _packed(folder: Path) -> dict[str, str]:
    return {
        name: base64.b64encode(zlib.compress((folder / name).read_bytes(), 9)).decode()
        for name in _FILES
    }


def _unpack(packed: dict[str, dict[str, dict[str, str]]], into: Path) -> list[RunRecord]:
    """Run folders `into`/RUN/PARTY."""
    records = []
    for run, parties in packed.items():
        for party, files in parties.items():
            folder = into / run / party
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / name).write_bytes(zlib.decompress(base64.b64decode(text)))
            records.append(RunRecord(folder))
    return records

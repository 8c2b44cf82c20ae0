"""The paper's tables and figures: their arithmetic, their runs, and what is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import celu
from bench.__main__ import _seeds
from bench.curves import Run
from bench.pair import VANILLA, Shape, open_pair, with_hosts
from bench.paper import drawing, making, over_time, similarity, table2, training
from bench.paper.drawing import Artefact, Drawing, Line, curve_line, draw_lines, new_figure
from bench.paper.profiles import PROFILES, Profile, Task
from bench.paper.runs import Lacking, Runs, together
from bench.paper.stores import Stores
from bench.paper.study import Baseline, Spread, Study, ratio, rounds_to, seconds_to, tune
from bench.paper.training import CELU, GUEST_ONLY, Train
from bench.paper.words import against_paper, trend
from bench.report import BenchResult
from browser import browser
from celu.cli.app import app
from celu.config.link import PROFILES as LINES
from celu.errors import ConfigError, DataError
from study_tasks import Count, Fail

SHAPE = Shape(32, 8, 2, (8,), rows=2000, rounds=12, every=4, test_rows=150)
TINY = Profile(
    "tiny",
    {"criteo": Task("criteo", "made-up", SHAPE)},
    seeds=(1, 2),
    rates={"paper": (0.1, 0.5), "strong": (0.01, 0.03)},
    checkpoints=(3,),
    replicas=2,
)


def runs_in(folder: Path, workers: int = 1, say: Callable[[str], None] = print) -> Runs:
    return Runs(folder, TINY, Stores(folder / "stores", None, say), workers, say)


# The tables' arithmetic.


def test_a_mean_over_seeds_is_none_where_a_seed_never_got_there() -> None:
    assert Spread.of([10.0, 14.0]) == Spread(12.0, pytest.approx(8**0.5), [10.0, 14.0])
    assert Spread.of([10.0, None]) == Spread(None, None, [10.0, None])
    assert Spread.of([10.0]).deviation is None
    assert ratio(None, 2.0) is None and ratio(1.0, None) is None and ratio(1.0, 4.0) == 0.25


def test_how_many_seeds_got_there_is_told_where_not_all_did() -> None:
    assert Spread.of([1000.0, 1401.0]).told("rounds") == "1,200 rounds"
    assert Spread.of([10.0, None, 12.0]).told("rounds") == "by 2 of 3 seeds"
    assert Spread.of([None, None]).told("rounds") == "not reached"


def test_rounds_and_seconds_to_a_target_are_means_over_seeds() -> None:
    seeds = [Run([(10, 2.0, 0.6), (20, 4.0, 0.7)]), Run([(10, 3.0, 0.7)])]
    assert rounds_to(seeds, 0.7).mean == 15
    assert seconds_to(seeds, 0.7).mean == 3.5


def test_the_figures_of_table_2_by_hand() -> None:
    rounds: dict[celu.Method, float | None] = {
        VANILLA: 100.0,
        CELU: 40.0,
        celu.Method(W=1, R=5, xi=60): 50.0,
        celu.Method(W=5, R=5, weighting="none"): None,
        GUEST_ONLY: 60.0,
    }
    assert table2.figures_of(rounds) == {
        "celu_rounds": 0.4,
        "w5_over_w1": 0.8,
        "weighting_gain": None,
        "guest_only_rounds": 0.6,
    }


def test_the_paper_s_table_is_as_printed() -> None:
    assert len(table2.CELLS) == 24
    printed = {(c.setting, c.value): round(100 * (1 - c.paper_ratio), 2) for c in table2.CELLS}
    assert printed["W=5, xi=90", "R=3"] == 55.61
    assert printed["W=5, xi=60", "R=8"] == 60.37
    saved = {name: round(100 * (1 - value), 2) for name, value in table2.paper_figures().items()}
    assert saved == {"celu_rounds": 59.52, "w5_over_w1": 20.04, "weighting_gain": 23.68}


def test_the_words_follow_from_the_numbers() -> None:
    assert "within 10%" in against_paper("x", 0.42, 0.40)
    assert "50% above it." in against_paper("x", 0.6, 0.40)
    assert "other side of 1" in against_paper("x", 1.2, 0.40)
    assert "did not reach" in against_paper("x", None, 0.40)
    assert "as the paper says" in trend("It", {1: 2.0, 8: 1.0}, "falls")
    assert "where the paper says that it falls" in trend("It", {1: 1.0, 8: 2.0}, "falls")


def test_only_what_was_chosen_anew_is_told() -> None:
    choices = ["from round 4: 6 in flight", "from round 25: as before", "from round 54: R 1 and 1"]
    run = training.run_of({"curve": [[25, 1.5, 0.6]], "choices": choices})
    assert run.choices == [choices[0], choices[2]] and run.curve == [(25, 1.5, 0.6)]


def test_neighbouring_rounds_are_averaged() -> None:
    rows = [[float(n), float(n), 1.0] for n in range(1, 121)]
    course = similarity.binned(rows)
    assert len(course) == 60
    assert course[0] == (1.5, [1.5, 1.0])


def test_seeds_are_whole_numbers_with_commas_between() -> None:
    assert _seeds("3,1") == [3, 1] and _seeds(None) == []
    for wrong in ("1,x", "1,1", "-1"):
        with pytest.raises(ConfigError, match="--seeds"):
            _seeds(wrong)


# Shapes and data.


def test_a_message_takes_as_long_in_every_profile_as_the_paper_s() -> None:
    real = 4096 * 256 * 4 / LINES["wan-300"].mbps
    for profile in PROFILES.values():
        for task in profile.tasks.values():
            shape = task.shape
            assert shape.batch * shape.width * 4 / shape.line.mbps == pytest.approx(real)


def test_a_host_s_columns_are_dealt_out_and_none_is_lost(tmp_path: Path) -> None:
    pair = open_pair(Stores(tmp_path, None, print).of(TINY.tasks["criteo"]), "cpu")
    assert with_hosts(pair, 1) is pair
    dealt = with_hosts(pair, 3)
    assert list(dealt) == ["guest", "host1", "host2", "host3"]
    (name,) = pair["host"][0].inputs
    for part in (0, 1):
        parts = [dealt[f"host{n}"][part].inputs[name] for n in (1, 2, 3)]
        assert torch.equal(torch.cat(parts, dim=1), pair["host"][part].inputs[name])
    sizes = [size for n in (1, 2, 3) for size in dealt[f"host{n}"][0].sizes[name]]
    assert tuple(sizes) == pair["host"][0].sizes[name]


def test_a_sample_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    task = PROFILES["cpu"].tasks["criteo"]
    with pytest.raises(ConfigError, match="--data"):
        Stores(tmp_path, None, print).of(task)
    with pytest.raises(DataError, match="criteo_random"):
        Stores(tmp_path, tmp_path, print).of(task)
    assert not (tmp_path / "criteo-sample").exists()


# Runs.


def test_a_run_that_ended_is_not_done_again(tmp_path: Path) -> None:
    heard: list[str] = []
    work, marks = Count(str(tmp_path / "marks")), tmp_path / "marks"
    first = runs_in(tmp_path)
    assert first.run([(work, 1), (work, 2), (work, 1)]) == {
        (work, 1): {"seed": 1},
        (work, 2): {"seed": 2},
    }
    assert first.made_with()["versions"]["celu"] == celu.__version__
    again = runs_in(tmp_path, say=heard.append)
    assert again.run([(work, 2), (work, 3)])[work, 2] == {"seed": 2}
    assert marks.read_text().split() == ["1", "2", "3"]
    assert any("1 of 2 runs are in" in line for line in heard)


def test_what_is_lacking_is_told_where_only_the_known_is_asked_for(tmp_path: Path) -> None:
    runs, work = runs_in(tmp_path), Count(str(tmp_path / "marks"))
    runs.run([(work, 1)])
    with runs.only_known():
        assert runs.run([(work, 1)]) == {(work, 1): {"seed": 1}}
        with pytest.raises(Lacking) as lacking:
            runs.run([(work, 1), (work, 2)])
    assert lacking.value.asked == [(work, 2)]
    assert (tmp_path / "marks").read_text().split() == ["1"]
    runs.run([(work, 2)])
    assert (tmp_path / "marks").read_text().split() == ["1", "2"]


def test_who_ask_together_are_told_what_all_of_them_lack(tmp_path: Path) -> None:
    runs, work = runs_in(tmp_path), Count(str(tmp_path / "marks"))
    asking = [partial(runs.run, [(work, seed)]) for seed in (1, 2, 3)]
    asking[1]()
    with runs.only_known(), pytest.raises(Lacking) as lacking:
        together(asking)
    assert lacking.value.asked == [(work, 1), (work, 3)]
    assert together(asking) == [{(work, seed): {"seed": seed}} for seed in (1, 2, 3)]


def test_parts_share_one_pool_of_runs_and_are_told_as_they_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"

    def part(stages: int) -> making.Part:
        def measure(study: Study) -> tuple[BenchResult, list[Artefact]]:
            for stage in range(stages):  # each is known to be wanted once the one before is done
                study.runs.run([(Count(str(marks), cost=stages), 10 * stages + stage)])
            return BenchResult(f"of {stages}", list(study.seeds)), []

        return measure

    monkeypatch.setitem(PROFILES, "tiny", TINY)
    monkeypatch.setattr(making, "PARTS", {"long": part(3), "short": part(1), "middle": part(2)})
    made = [result.bench for result, _ in making.bench_paper(print, tmp_path, profile="tiny")]
    assert made == ["of 1", "of 2", "of 3"]
    # Stage by stage, the dearest first; nothing of one part waits for all of another.
    assert marks.read_text().split() == ["30", "20", "10", "31", "21", "32"]


def test_what_is_under_way_when_a_run_fails_is_kept(tmp_path: Path) -> None:
    work, marks = Fail(str(tmp_path / "marks")), tmp_path / "marks"
    with runs_in(tmp_path, workers=2) as runs, pytest.raises(DataError, match="as it should"):
        runs.run([(work, 2), (work, 1), *((work, seed) for seed in range(3, 30))])
    done = marks.read_text().split()
    assert "2" in done and len(done) < 28
    again = runs_in(tmp_path)
    assert again.run([(work, int(seed)) for seed in done])[work, 2] == {"seed": 2}
    assert marks.read_text().split() == done  # none of them was done again


def test_runs_that_are_kept_need_no_data(tmp_path: Path) -> None:
    asked = [(Count(str(tmp_path / "marks")), 1)]
    kept = runs_in(tmp_path / "there").run(asked)
    (tmp_path / "here").mkdir()
    shutil.copy(tmp_path / "there" / "runs.jsonl", tmp_path / "here")
    assert runs_in(tmp_path / "here", workers=2).run(asked) == kept
    assert not (tmp_path / "here" / "stores").exists()


def test_a_run_that_was_killed_while_it_was_written_is_done_again(tmp_path: Path) -> None:
    work, marks = Count(str(tmp_path / "marks")), tmp_path / "marks"
    runs_in(tmp_path).run([(work, 1), (work, 2)])
    file = tmp_path / "runs.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    runs_in(tmp_path).run([(work, 1), (work, 2)])
    runs_in(tmp_path).run([(work, 1), (work, 2)])
    assert marks.read_text().split() == ["1", "2", "2"]
    assert len(file.read_text().splitlines()) == 2


def test_a_file_of_something_else_is_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"event": "round"}\n')
    with pytest.raises(ConfigError, match=r"runs.jsonl: expected the runs of a study"):
        runs_in(tmp_path)


def test_a_run_of_other_sizes_is_another_run(tmp_path: Path) -> None:
    runs = runs_in(tmp_path)
    work = Train("criteo", "paper", 0.1)
    others = [replace(work, lr=0.2), replace(work, method=CELU), replace(work, target=0.7)]
    longer = replace(TINY.tasks["criteo"], shape=replace(SHAPE, rounds=13))
    stores = Stores(tmp_path / "stores", None, print)
    larger = Runs(tmp_path, replace(TINY, tasks={"criteo": longer}), stores, 1, print)
    keys = {runs._key(work, 1), runs._key(work, 2), larger._key(work, 1)}
    keys |= {runs._key(other, 1) for other in others}
    assert len(keys) == 6


def test_processes_give_the_runs_of_one(tmp_path: Path) -> None:
    asked = [(Train("criteo", "paper", 0.1, CELU), seed) for seed in (1, 2)]
    alone = runs_in(tmp_path / "alone").run(asked)
    with runs_in(tmp_path / "shared", workers=2) as runs:
        shared = runs.run(asked)
    for one in asked:
        for (a_round, _, a_auc), (b_round, _, b_auc) in zip(
            alone[one]["curve"], shared[one]["curve"], strict=True
        ):
            assert (a_round, a_auc) == (b_round, b_auc)


def test_a_run_that_ends_in_nan_tells_how_far_it_got(tmp_path: Path) -> None:
    train = Train("criteo", "paper", 1e20, CELU)
    values = runs_in(tmp_path).run([(train, 1)])[train, 1]
    assert values["ended"]
    assert training.run_of(values).reached(0.9) is None


def test_vanilla_is_tuned_and_its_target_was_reached_with_every_seed(tmp_path: Path) -> None:
    study = Study(TINY, TINY.seeds, runs_in(tmp_path))
    baseline = tune(study, "criteo", "paper")
    assert set(baseline.grid) == {0.1, 0.5}
    fewest = min(rounds for rounds in baseline.grid.values() if rounds is not None)
    chosen = baseline.grid[baseline.vanilla.lr]
    assert chosen is not None and chosen <= 1.1 * fewest
    assert rounds_to(baseline.runs, baseline.target).mean is not None
    other = baseline.of(CELU)
    assert (other.lr, other.target) == (baseline.vanilla.lr, baseline.target)


@pytest.mark.parametrize(("at_vanillas", "keeps"), [([], False), ([(1, 0.1, 1.0)], True)])
def test_a_method_has_a_lower_rate_where_vanilla_s_is_too_high_for_it(
    tmp_path: Path, at_vanillas: list[tuple[int, float, float]], keeps: bool
) -> None:
    study = Study(TINY, TINY.seeds, runs_in(tmp_path))
    vanilla = Train("criteo", "paper", 0.5)
    of_vanilla = study.train([vanilla])[vanilla]
    baseline = Baseline(TINY.tasks["criteo"], vanilla, 0.501, {}, 0.501, of_vanilla)
    # Either nobody got there at vanilla's rate, or everybody did before the first evaluation here.
    runs = {name: [Run(at_vanillas, [])] * 2 for name in ("FedBCD R=5", "CELU R=5")}
    for name, (train, own) in over_time._tuned(study, baseline, runs).items():
        assert train.lr == (0.5 if keeps else 0.1) and train.target == 0.501
        assert (own is runs[name]) is keeps and len(own) == 2
        assert seconds_to(own, 0.501).mean is not None


# What is written.


def test_a_part_writes_its_table_and_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "tiny", TINY)
    ((result, files),) = making.bench_paper(
        print, tmp_path, parts=["similarity"], profile="tiny", seeds=[1]
    )
    assert {file.name for file in files} == {
        *("similarity.json", "similarity.md"),
        *("similarity-quantiles.svg", "similarity-quantiles.png"),
    }
    assert all(file.stat().st_size > 500 for file in files)
    written = json.loads((tmp_path / "similarity.json").read_text())
    assert written["profile"] == "tiny" and written["hardware"]["cpus"]
    assert set(result.figures) == {
        f"{party}_{figure}_{setting}"
        for party in ("host", "guest")
        for figure in ("q10", "q10_least")
        for setting in ("paper", "strong", "paper_w1")
    }
    text = (tmp_path / "similarity.md").read_text()
    assert "![similarity-quantiles](similarity-quantiles.svg)" in text
    assert "| setting | party |" in text


@pytest.mark.parametrize("part", ["theory", "beyond"])
def test_what_is_shown_of_the_paper_s_sizes_follows_from_the_runs_that_are_kept(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Path(__file__).parents[2] / "docs" / "results" / "paper-gpu"
    shutil.copy(shown / "runs.jsonl", tmp_path)
    written = json.loads((shown / f"{part}.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(celu, "__version__", written["versions"]["celu"])
    # Of a run that is lacking the data would be made first: ten million rows.
    monkeypatch.setattr(Stores, "of", lambda *_: pytest.fail("a run is lacking"))
    ((result, files),) = making.bench_paper(print, tmp_path, parts=[part], profile="gpu")
    made = {"rows": result.rows, "figures": result.figures, "notes": result.notes}
    assert made == {name: written[name] for name in made}
    kept = {path.name for path in shown.glob(f"{part}*")}
    assert {file.name for file in files if file.suffix != ".png"} == kept
    assert (tmp_path / f"{part}.md").read_bytes() == (shown / f"{part}.md").read_bytes()


def test_without_matplotlib_all_is_measured_and_the_next_step_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "tiny", TINY)
    monkeypatch.setattr(drawing, "can_draw", lambda: False)
    parts = making.bench_paper(print, tmp_path, parts=["similarity"], profile="tiny", seeds=[1])
    _, files = next(parts)
    assert {file.name for file in files} == {"similarity.json", "similarity.md"}
    with pytest.raises(ConfigError, match=r"celu\[figures\]"):
        next(parts)


def test_the_runs_are_reported_here_where_another_machine_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "tiny", TINY)
    there, here = tmp_path / "there", tmp_path / "here"
    for out in (there, here):
        parts = making.bench_paper(print, out, parts=["report"], profile="tiny", seeds=[1])
        ((result, files),) = parts
        assert [file.name for file in files] == ["report.json", "report.md", "report.html"]
        here.mkdir(exist_ok=True)
        shutil.copy(there / "runs.jsonl", here)
    assert not (here / "stores").exists()
    assert (here / "report.html").read_bytes() == (there / "report.html").read_bytes()
    folders = sorted((here / "report").glob("*/*"))
    assert len(folders) == 8 and [row["run"] for row in result.rows[::2]] == [
        *("vanilla", "fedbcd", "celu", "together")
    ]
    command = ["report", *map(str, folders), "--out", str(tmp_path / "again.html")]
    assert CliRunner().invoke(app, command).exit_code == 0
    with browser() as tabs:
        for page in (here / "report.html", tmp_path / "again.html"):
            tab = tabs()
            tab.open(page.as_uri())
            tab.wait_for("document.querySelectorAll('canvas').length > 5")
            tab.wait_for("document.querySelectorAll('#time rect[y]').length > 10")
            assert "Held-out AUC" in tab.evaluate("document.body.innerText")
            assert tab.errors == [] and tab.requests == [page.as_uri()]


def test_what_there_is_none_of_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for wrong in ({"parts": ["table3"]}, {"profile": "huge"}, {"profile": "cpu"}):
        with pytest.raises(ConfigError, match="expected"):
            next(making.bench_paper(print, tmp_path / "new", **wrong))
    assert not (tmp_path / "new").exists()


def test_a_figure_is_drawn_the_same_every_time_with_its_text_as_text(tmp_path: Path) -> None:
    def draw() -> object:
        figure, ((axes,),) = new_figure(1, 1, 4, 3)
        draw_lines(axes, [Line("a", "#000000", [1, 2], [3, 4], [2, 3], [4, 5])])
        axes.set_title("Words to find")
        return figure

    figure = Drawing("x", draw)  # type: ignore[arg-type]
    first, second = figure.save(tmp_path / "1", "p"), figure.save(tmp_path / "2", "p")
    for a, b in zip(first, second, strict=True):
        assert a.name == b.name and a.read_bytes() == b.read_bytes()
    assert "Words to find" in first[0].read_text()


def test_a_curve_is_drawn_as_far_as_all_seeds_went() -> None:
    seeds = [Run([(4, 1.0, 0.5), (8, 2.0, 0.7)]), Run([(4, 3.0, 0.6)])]
    line = curve_line(seeds, "", "", over="seconds")
    assert (line.xs, line.ys, line.low, line.high) == ([2.0], [0.55], [0.5], [0.6])

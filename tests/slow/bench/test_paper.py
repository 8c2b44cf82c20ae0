"""The paper study: the arithmetic of its tables, its runs, and the files that it writes."""

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
from bench.pair import VANILLA, Shape, open_pair, split_hosts
from bench.paper import compensated, drawing, runner, similarity, table2, time_to_auc, training
from bench.paper.by_hand import is_undecided, lost_auc
from bench.paper.claims import compare_with_paper, describe_trend
from bench.paper.drawing import Artefact, Drawing, Series, curve_series, draw_series, new_figure
from bench.paper.profiles import PROFILES, Profile, Task
from bench.paper.runs import MissingRuns, RunCache, gather
from bench.paper.stores import Stores
from bench.paper.study import Baseline, Spread, Study, ratio, rounds_to, seconds_to, tune
from bench.paper.training import CELU, CONSECUTIVE, GUEST_ONLY, Train
from bench.report import BenchResult
from browser import browser
from celu.cli.app import app
from celu.config.link import PROFILES as LINKS
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


def runs_in(folder: Path, workers: int = 1, log: Callable[[str], None] = print) -> RunCache:
    return RunCache(folder, TINY, Stores(folder / "stores", None, log), workers, log)


# The tables' arithmetic.


def test_a_mean_over_seeds_is_none_if_a_seed_never_reached_the_target() -> None:
    assert Spread.of([10.0, 14.0]) == Spread(12.0, pytest.approx(8**0.5), [10.0, 14.0])
    assert Spread.of([10.0, None]) == Spread(None, None, [10.0, None])
    assert Spread.of([10.0, 14.0]).error == pytest.approx(2.0)
    assert Spread.of([10.0]).deviation is None
    assert Spread.of([10.0]).error is None
    assert ratio(None, 2.0) is None and ratio(1.0, None) is None and ratio(1.0, 4.0) == 0.25


def test_the_lost_auc_compares_the_last_evaluations_seed_by_seed() -> None:
    vanilla = [Run([(1, 1.0, 0.9), (2, 2.0, last)]) for last in (0.75, 0.5)]
    auto = [Run([(1, 1.0, 0.1), (2, 2.0, last)]) for last in (0.5, 0.75)]
    assert lost_auc(vanilla, auto).by_seed == [0.25, -0.25]


@pytest.mark.parametrize(
    ("by_seed", "undecided"),
    [
        ([0.000, 0.002], True),
        ([0.000, 0.0012], True),
        ([-0.02, -0.021], False),
        ([0.010, 0.011], False),
        ([0.001], False),  # one seed has no standard error
        ([0.001, None], False),
    ],
)
def test_a_loss_within_its_error_of_the_limit_is_undecided(
    by_seed: list[float | None], undecided: bool
) -> None:
    assert is_undecided(Spread.of(by_seed)) is undecided


def test_the_text_says_how_many_seeds_reached_the_target() -> None:
    assert Spread.of([1000.0, 1401.0]).describe("rounds") == "1,200 rounds"
    assert Spread.of([10.0, None, 12.0]).describe("rounds") == "by 2 of 3 seeds"
    assert Spread.of([None, None]).describe("rounds") == "not reached"


def test_rounds_and_seconds_to_a_target_are_means_over_seeds() -> None:
    seeds = [Run([(10, 2.0, 0.6), (20, 4.0, 0.7)]), Run([(10, 3.0, 0.7)])]
    assert rounds_to(seeds, 0.7).mean == 15
    assert seconds_to(seeds, 0.7).mean == 3.5


def test_the_figures_of_table_2_are_ratios_of_rounds() -> None:
    rounds: dict[celu.Method, float | None] = {
        VANILLA: 100.0,
        CELU: 40.0,
        CONSECUTIVE: 50.0,
        celu.Method(W=5, R=5, weighting="none"): None,
        GUEST_ONLY: 60.0,
    }
    assert table2.figures_of(rounds) == {
        "celu_rounds": 0.4,
        "w5_over_w1": 0.8,
        "weighting_gain": None,
        "guest_only_rounds": 0.6,
    }


def test_the_papers_table_matches_the_printed_savings() -> None:
    assert len(table2.CELLS) == 24
    printed = {(c.setting, c.value): round(100 * (1 - c.paper_ratio), 2) for c in table2.CELLS}
    assert printed["W=5, xi=90", "R=3"] == 55.61
    assert printed["W=5, xi=60", "R=8"] == 60.37
    saved = {name: round(100 * (1 - value), 2) for name, value in table2.paper_figures().items()}
    assert saved == {"celu_rounds": 59.52, "w5_over_w1": 20.04, "weighting_gain": 23.68}


def test_the_sentences_follow_from_the_numbers() -> None:
    assert "within 10%" in compare_with_paper("x", 0.42, 0.40)
    assert "50% above it." in compare_with_paper("x", 0.6, 0.40)
    assert "other side of 1" in compare_with_paper("x", 1.2, 0.40)
    assert "did not reach" in compare_with_paper("x", None, 0.40)
    assert "as the paper says" in describe_trend("It", {1: 2.0, 8: 1.0}, "falls")
    assert "where the paper says that it falls" in describe_trend("It", {1: 1.0, 8: 2.0}, "falls")


def test_choices_that_change_nothing_are_left_out() -> None:
    choices = ["from round 4: 6 in flight", "from round 25: as before", "from round 54: R 1 and 1"]
    run = training.to_run({"curve": [[25, 1.5, 0.6]], "choices": choices})
    assert run.choices == [choices[0], choices[2]] and run.curve == [(25, 1.5, 0.6)]


def test_neighbouring_rounds_are_averaged() -> None:
    rows = [[float(n), float(n), 1.0] for n in range(1, 121)]
    curve = similarity.smooth(rows)
    assert len(curve) == 60
    assert curve[0] == (1.5, [1.5, 1.0])


def test_seeds_are_whole_numbers_separated_by_commas() -> None:
    assert _seeds("3,1") == [3, 1] and _seeds(None) == []
    for wrong in ("1,x", "1,1", "-1"):
        with pytest.raises(ConfigError, match="--seeds"):
            _seeds(wrong)


# Shapes and data.


def test_a_message_takes_as_long_as_in_the_paper_in_every_profile() -> None:
    real = 4096 * 256 * 4 / LINKS["wan-300"].mbps
    for profile in PROFILES.values():
        for task in profile.tasks.values():
            shape = task.shape
            assert shape.batch * shape.width * 4 / shape.link.mbps == pytest.approx(real)


def test_the_columns_of_a_host_are_split_between_hosts_and_none_is_lost(tmp_path: Path) -> None:
    pair = open_pair(Stores(tmp_path, None, print).folder_for(TINY.tasks["criteo"]), "cpu")
    assert split_hosts(pair, 1) is pair
    split = split_hosts(pair, 3)
    assert list(split) == ["guest", "host1", "host2", "host3"]
    (name,) = pair["host"][0].inputs
    for part in (0, 1):
        parts = [split[f"host{n}"][part].inputs[name] for n in (1, 2, 3)]
        assert torch.equal(torch.cat(parts, dim=1), pair["host"][part].inputs[name])
    sizes = [size for n in (1, 2, 3) for size in split[f"host{n}"][0].sizes[name]]
    assert tuple(sizes) == pair["host"][0].sizes[name]


def test_a_missing_sample_is_reported(tmp_path: Path) -> None:
    task = PROFILES["cpu"].tasks["criteo"]
    with pytest.raises(ConfigError, match="--data"):
        Stores(tmp_path, None, print).folder_for(task)
    with pytest.raises(DataError, match="criteo_random"):
        Stores(tmp_path, tmp_path, print).folder_for(task)
    assert not (tmp_path / "criteo-sample").exists()


# Runs.


def test_a_finished_run_is_not_executed_again(tmp_path: Path) -> None:
    logged: list[str] = []
    spec, executed = Count(str(tmp_path / "executed")), tmp_path / "executed"
    first = runs_in(tmp_path)
    assert first.run([(spec, 1), (spec, 2), (spec, 1)]) == {
        (spec, 1): {"seed": 1},
        (spec, 2): {"seed": 2},
    }
    assert first.environment()["versions"]["celu"] == celu.__version__
    again = runs_in(tmp_path, log=logged.append)
    assert again.run([(spec, 2), (spec, 3)])[spec, 2] == {"seed": 2}
    assert executed.read_text().split() == ["1", "2", "3"]
    assert any("1 of 2 runs are in" in line for line in logged)


def test_cached_only_raises_the_missing_runs_and_executes_none(tmp_path: Path) -> None:
    runs, spec = runs_in(tmp_path), Count(str(tmp_path / "executed"))
    runs.run([(spec, 1)])
    with runs.cached_only():
        assert runs.run([(spec, 1)]) == {(spec, 1): {"seed": 1}}
        with pytest.raises(MissingRuns) as missing:
            runs.run([(spec, 1), (spec, 2)])
    assert missing.value.requests == [(spec, 2)]
    assert (tmp_path / "executed").read_text().split() == ["1"]
    runs.run([(spec, 2)])
    assert (tmp_path / "executed").read_text().split() == ["1", "2"]


def test_gather_raises_the_missing_runs_of_all_calls(tmp_path: Path) -> None:
    runs, spec = runs_in(tmp_path), Count(str(tmp_path / "executed"))
    calls = [partial(runs.run, [(spec, seed)]) for seed in (1, 2, 3)]
    calls[1]()
    with runs.cached_only(), pytest.raises(MissingRuns) as missing:
        gather(calls)
    assert missing.value.requests == [(spec, 1), (spec, 3)]
    assert gather(calls) == [{(spec, seed): {"seed": seed}} for seed in (1, 2, 3)]


def test_parts_share_one_pool_of_runs_and_are_yielded_when_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = tmp_path / "executed"

    def part(stages: int) -> runner.Part:
        def measure(study: Study) -> tuple[BenchResult, list[Artefact]]:
            for stage in range(stages):  # each is requested only after the one before is done
                study.runs.run([(Count(str(executed), cost=stages), 10 * stages + stage)])
            return BenchResult(f"of {stages}", list(study.seeds)), []

        return measure

    monkeypatch.setitem(PROFILES, "tiny", TINY)
    monkeypatch.setattr(runner, "PARTS", {"long": part(3), "short": part(1), "middle": part(2)})
    made = [result.bench for result, _ in runner.bench_paper(print, tmp_path, profile="tiny")]
    assert made == ["of 1", "of 2", "of 3"]
    # Stage by stage, the most expensive first; no part waits for all of another.
    assert executed.read_text().split() == ["30", "20", "10", "31", "21", "32"]


def test_runs_in_progress_when_another_fails_are_cached(tmp_path: Path) -> None:
    spec, executed = Fail(str(tmp_path / "executed")), tmp_path / "executed"
    with runs_in(tmp_path, workers=2) as runs, pytest.raises(DataError, match="as it should"):
        runs.run([(spec, 2), (spec, 1), *((spec, seed) for seed in range(3, 30))])
    done = executed.read_text().split()
    assert "2" in done and len(done) < 28
    again = runs_in(tmp_path)
    assert again.run([(spec, int(seed)) for seed in done])[spec, 2] == {"seed": 2}
    assert executed.read_text().split() == done  # none of them was executed again


def test_cached_runs_need_no_data(tmp_path: Path) -> None:
    requests = [(Count(str(tmp_path / "executed")), 1)]
    expected = runs_in(tmp_path / "there").run(requests)
    (tmp_path / "here").mkdir()
    shutil.copy(tmp_path / "there" / "runs.jsonl", tmp_path / "here")
    assert runs_in(tmp_path / "here", workers=2).run(requests) == expected
    assert not (tmp_path / "here" / "stores").exists()


def test_a_run_with_an_incomplete_record_is_executed_again(tmp_path: Path) -> None:
    spec, executed = Count(str(tmp_path / "executed")), tmp_path / "executed"
    runs_in(tmp_path).run([(spec, 1), (spec, 2)])
    file = tmp_path / "runs.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    runs_in(tmp_path).run([(spec, 1), (spec, 2)])
    runs_in(tmp_path).run([(spec, 1), (spec, 2)])
    assert executed.read_text().split() == ["1", "2", "2"]
    assert len(file.read_text().splitlines()) == 2


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"event": "round"}\n')
    with pytest.raises(ConfigError, match=r"runs.jsonl is not a file of runs"):
        runs_in(tmp_path)


def test_a_run_with_other_sizes_has_another_key(tmp_path: Path) -> None:
    runs = runs_in(tmp_path)
    spec = Train("criteo", "paper", 0.1)
    others = [replace(spec, lr=0.2), replace(spec, method=CELU), replace(spec, target=0.7)]
    longer = replace(TINY.tasks["criteo"], shape=replace(SHAPE, rounds=13))
    stores = Stores(tmp_path / "stores", None, print)
    larger = RunCache(tmp_path, replace(TINY, tasks={"criteo": longer}), stores, 1, print)
    keys = {runs._key(spec, 1), runs._key(spec, 2), larger._key(spec, 1)}
    keys |= {runs._key(other, 1) for other in others}
    assert len(keys) == 6


def test_worker_processes_give_the_same_results_as_one_process(tmp_path: Path) -> None:
    requests = [(Train("criteo", "paper", 0.1, CELU), seed) for seed in (1, 2)]
    alone = runs_in(tmp_path / "alone").run(requests)
    with runs_in(tmp_path / "shared", workers=2) as runs:
        shared = runs.run(requests)
    for one in requests:
        for (a_round, _, a_auc), (b_round, _, b_auc) in zip(
            alone[one]["curve"], shared[one]["curve"], strict=True
        ):
            assert (a_round, a_auc) == (b_round, b_auc)


def test_a_run_that_ends_with_nan_returns_its_curve(tmp_path: Path) -> None:
    train = Train("criteo", "paper", 1e20, CELU)
    values = runs_in(tmp_path).run([(train, 1)])[train, 1]
    assert values["ended"]
    assert training.to_run(values).reached(0.9) is None


def test_vanilla_is_tuned_and_reaches_its_target_with_every_seed(tmp_path: Path) -> None:
    study = Study(TINY, TINY.seeds, runs_in(tmp_path))
    baseline = tune(study, "criteo", "paper")
    assert set(baseline.grid) == {0.1, 0.5}
    fewest = min(rounds for rounds in baseline.grid.values() if rounds is not None)
    chosen = baseline.grid[baseline.vanilla.lr]
    assert chosen is not None and chosen <= 1.1 * fewest
    assert rounds_to(baseline.runs, baseline.target).mean is not None
    other = baseline.with_method(CELU)
    assert (other.lr, other.target) == (baseline.vanilla.lr, baseline.target)


@pytest.mark.parametrize(("at_vanillas", "keeps"), [([], False), ([(1, 0.1, 1.0)], True)])
def test_a_method_gets_a_lower_rate_if_that_of_vanilla_is_too_high_for_it(
    tmp_path: Path, at_vanillas: list[tuple[int, float, float]], keeps: bool
) -> None:
    study = Study(TINY, TINY.seeds, runs_in(tmp_path))
    vanilla = Train("criteo", "paper", 0.5)
    of_vanilla = study.train([vanilla])[vanilla]
    baseline = Baseline(TINY.tasks["criteo"], vanilla, 0.501, {}, 0.501, of_vanilla)
    # At vanilla's rate either no run reached the target, or all did at the first evaluation.
    runs = {name: [Run(at_vanillas, [])] * 2 for name in ("FedBCD R=5", "CELU R=5")}
    for name, (train, own) in time_to_auc._tuned(study, baseline, runs).items():
        assert train.lr == (0.5 if keeps else 0.1) and train.target == 0.501
        assert (own is runs[name]) is keeps and len(own) == 2
        assert seconds_to(own, 0.501).mean is not None


# Files.


def test_a_part_writes_its_table_and_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "tiny", TINY)
    ((result, files),) = runner.bench_paper(
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


def test_a_brief_study_has_one_case_and_a_few_variants_of_every_axis() -> None:
    everything, selected = (compensated.select_cases(brief) for brief in (False, True))
    ((case, variants),) = selected.items()
    assert variants.items() <= everything[case].items()
    assert {axis for axis, _ in variants} == {axis for axis, _ in everything[case]}
    assert len(variants) < 40 < sum(map(len, everything.values()))
    assert [name for name, profile in PROFILES.items() if profile.brief] == ["smoke"]


def test_the_parts_with_many_variants_run_in_a_brief_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(SHAPE, rounds=8)
    tasks = {"criteo": Task("criteo", "made-up", short)}
    monkeypatch.setitem(PROFILES, "tiny", replace(TINY, tasks=tasks, brief=True))
    parts = runner.bench_paper(
        print, tmp_path, parts=["compensated", "auto"], profile="tiny", seeds=[1]
    )
    made = {result.bench: (result, [file.name for file in files]) for result, files in parts}
    compensated_, files = made["paper compensated"]
    assert {*files} == {
        *("compensated.json", "compensated.md"),
        *("compensated-curves.svg", "compensated-curves.png"),
    }
    assert set(compensated_.figures) == {
        *("compensated_over_celu", "compensated_over_celu_full_line"),
        *("fedbcd_after_over_overlapped", "celu_after_over_overlapped"),
    }
    variants = sum(map(len, compensated.select_cases(brief=True).values()))
    assert len(compensated_.rows) == 1 + variants  # and vanilla
    auto, files = made["paper auto"]
    assert {*files} == {"auto.json", "auto.md", "auto-seconds.svg", "auto-seconds.png"}
    assert {"auto_over_best_by_hand", "auto_auc_less_vanilla_worst"} < set(auto.figures)
    assert auto.figures["auto_auc_less_vanilla_worst_error"] is None  # one seed
    assert [row["setting"] for row in auto.rows[:4]] == [
        *("vanilla", "R=1/1, depth 1, 4bit", "R=5/5, depth 6, 4bit", "auto")
    ]


# Part beyond has variants that were not run on the GPU yet.
@pytest.mark.parametrize("part", ["theory"])
def test_the_published_results_follow_from_the_published_runs(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Path(__file__).parents[3] / "docs" / "results" / "paper-gpu"
    shutil.copy(shown / "runs.jsonl", tmp_path)
    written = json.loads((shown / f"{part}.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(celu, "__version__", written["versions"]["celu"])
    # A missing run would first write its data: ten million rows.
    monkeypatch.setattr(Stores, "folder_for", lambda *_: pytest.fail("a run is missing"))
    ((result, files),) = runner.bench_paper(print, tmp_path, parts=[part], profile="gpu")
    made = {"rows": result.rows, "figures": result.figures, "notes": result.notes}
    assert made == {name: written[name] for name in made}
    published = {path.name for path in shown.glob(f"{part}*")}
    assert {file.name for file in files if file.suffix != ".png"} == published
    assert (tmp_path / f"{part}.md").read_bytes() == (shown / f"{part}.md").read_bytes()


def test_without_matplotlib_the_results_are_written_and_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "tiny", TINY)
    monkeypatch.setattr(drawing, "can_draw", lambda: False)
    parts = runner.bench_paper(print, tmp_path, parts=["similarity"], profile="tiny", seeds=[1])
    _, files = next(parts)
    assert {file.name for file in files} == {"similarity.json", "similarity.md"}
    with pytest.raises(ConfigError, match=r"celu\[figures\]"):
        next(parts)


def test_run_folders_of_another_machine_are_reported_from_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "tiny", TINY)
    there, here = tmp_path / "there", tmp_path / "here"
    for out in (there, here):
        parts = runner.bench_paper(print, out, parts=["report"], profile="tiny", seeds=[1])
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


def test_unknown_parts_and_profiles_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for wrong in ({"parts": ["table3"]}, {"profile": "huge"}, {"profile": "cpu"}):
        with pytest.raises(ConfigError, match="expected"):
            next(runner.bench_paper(print, tmp_path / "new", **wrong))
    assert not (tmp_path / "new").exists()


def test_a_figure_is_the_same_bytes_every_time_and_its_text_stays_text(tmp_path: Path) -> None:
    def draw() -> object:
        figure, ((axes,),) = new_figure(1, 1, 4, 3)
        draw_series(axes, [Series("a", "#000000", [1, 2], [3, 4], [2, 3], [4, 5])])
        axes.set_title("Words to find")
        return figure

    figure = Drawing("x", draw)  # type: ignore[arg-type]
    first, second = figure.save(tmp_path / "1", "p"), figure.save(tmp_path / "2", "p")
    for a, b in zip(first, second, strict=True):
        assert a.name == b.name and a.read_bytes() == b.read_bytes()
    assert "Words to find" in first[0].read_text()


def test_a_curve_ends_where_the_first_seed_ends() -> None:
    seeds = [Run([(4, 1.0, 0.5), (8, 2.0, 0.7)]), Run([(4, 3.0, 0.6)])]
    line = curve_series(seeds, "", "", over="seconds")
    assert (line.xs, line.ys, line.low, line.high) == ([2.0], [0.55], [0.5], [0.6])

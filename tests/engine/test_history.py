"""What a long run retains of its evaluations is bounded, and covers the whole run."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from celu.config.job import Tuning
from celu.engine import history
from celu.engine.history import MAX_EVALUATIONS, Evaluation, EvaluationHistory
from celu.engine.observer import Observer, ProgressState
from celu.engine.plan import Stage
from celu.engine.schedule import Segment
from celu.engine.spans import Spans


def evaluations(start: int, stop: int) -> list[Evaluation]:
    return [{"round": float(number), "auc": 0.5} for number in range(start, stop)]


def rounds(kept: EvaluationHistory) -> list[int]:
    return [int(evaluation["round"]) for evaluation in kept.to_list()]


def history_of(count: int) -> EvaluationHistory:
    made = EvaluationHistory()
    for evaluation in evaluations(0, count):
        made.append(evaluation)
    return made


def test_all_evaluations_are_retained_up_to_the_limit() -> None:
    assert rounds(history_of(0)) == []
    assert rounds(history_of(MAX_EVALUATIONS)) == list(range(MAX_EVALUATIONS))


@given(st.integers(1, 30_000))
def test_more_are_evenly_spaced_from_the_first_and_end_with_the_last(count: int) -> None:
    kept = rounds(history_of(count))
    assert len(kept) <= MAX_EVALUATIONS + 1
    assert len(kept) > min(count, MAX_EVALUATIONS) // 2
    assert kept[0] == 0 and kept[-1] == count - 1
    assert len({later - earlier for earlier, later in pairwise(kept[:-1])}) <= 1


@given(st.integers(0, 9_000), st.integers(0, 9_000))
def test_a_resumed_history_equals_one_that_was_not_interrupted(before: int, after: int) -> None:
    saved = history_of(before)
    resumed = EvaluationHistory(saved.to_list(), saved.count)
    for evaluation in evaluations(before, before + after):
        resumed.append(evaluation)
    assert resumed.count == before + after
    assert resumed.to_list() == history_of(before + after).to_list()


@given(st.integers(0, 9_000))
def test_an_older_checkpoint_with_all_evaluations_is_thinned_when_it_is_resumed(count: int) -> None:
    resumed = EvaluationHistory(evaluations(0, count))
    assert resumed.count == count
    assert resumed.to_list() == history_of(count).to_list()


@given(st.integers(0, 96), st.integers(0, 96), st.integers(0, 9_000))
def test_a_history_that_is_rolled_back_equals_one_without_these_rounds(
    count: int, back_to: int, after: int
) -> None:
    history = history_of(count)
    history.roll_back(back_to)
    remaining = min(count, back_to + 1)
    assert history.count == remaining
    for evaluation in evaluations(remaining, remaining + after):
        history.append(evaluation)
    assert history.to_list() == history_of(remaining + after).to_list()


def test_evaluations_of_a_stage_that_is_rolled_back_are_dropped_with_it() -> None:
    observer = Observer(lambda event: None, [], 100, 10, Spans())
    for round_ in (1, 9, 19):
        observer.evaluated(round_, {"auc": 0.5}, target_reached=False)
    tuning = Tuning(W=1, R=1, depth=1, codec="fp32")
    observer.tuning_chosen(Stage(Segment(20, 30, tuning)))
    assert [e["round"] for e in observer.evaluations] == [2, 10, 20]
    observer.tuning_chosen(Stage(Segment(4, 30, tuning), restore="base"))
    assert [e["round"] for e in observer.evaluations] == [2]


def test_a_checkpoint_does_not_grow_with_the_number_of_evaluations() -> None:
    observer = Observer(lambda event: None, [], 10**9, 1000, Spans())
    for round_ in range(5 * history.MAX_EVALUATIONS):
        observer.evaluated(round_, {"auc": 0.5}, target_reached=False)
    progress = observer.progress({})
    assert len(progress.evaluations) <= history.MAX_EVALUATIONS + 1
    resumed = Observer(lambda event: None, [], 10**9, 1000, Spans())
    resumed.load_progress(ProgressState.model_validate_json(progress.model_dump_json()))
    assert resumed.evaluations == observer.evaluations
    assert observer.evaluations[-1]["round"] == 5 * history.MAX_EVALUATIONS

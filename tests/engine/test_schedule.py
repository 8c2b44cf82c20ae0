"""The order of work depends on settings and round only."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import celu
from celu.config.job import Choice
from celu.engine.schedule import Schedule, Segment, planned_segments


def segments(num_rounds: int, depth: int, choices: list[Choice] | None = None) -> list[Segment]:
    job = celu.Job(
        rounds=num_rounds,
        hosts={"host": celu.HostTerms()},
        method=celu.Method(depth=depth),
        choices=choices or [],
    )
    return list(planned_segments(job, schedule(num_rounds)))


def schedule(num_rounds: int, every: int = 3) -> Schedule:
    return Schedule(num_rounds, 10, every, test_rows=10, part_rows=4)


def last_sent(plan: list[Segment]) -> list[int]:
    return [segment.last_sent(round_) for segment in plan for round_ in segment.rounds]


def test_with_depth_1_each_round_sends_its_own_activation() -> None:
    assert last_sent(segments(5, depth=1)) == [0, 1, 2, 3, 4]


def test_with_depth_3_activations_are_sent_two_rounds_ahead() -> None:
    assert last_sent(segments(6, depth=3)) == [2, 3, 4, 5, 5, 5]


@given(st.integers(1, 40), st.integers(1, 8), st.sets(st.integers(1, 45)))
def test_every_activation_is_sent_and_never_too_early(
    num_rounds: int, depth: int, changes: set[int]
) -> None:
    choices = [Choice(round=r, W=1, R=1, depth=depth, codec="fp32") for r in (0, *sorted(changes))]
    plan = segments(num_rounds, depth, choices)
    assert [round_ for segment in plan for round_ in segment.rounds] == list(range(num_rounds))
    for segment in plan:
        sent = [segment.last_sent(round_) for round_ in segment.rounds]
        assert sent == sorted(sent)
        assert all(0 <= last - r < depth for last, r in zip(sent, segment.rounds, strict=True))
        assert sent[-1] == segment.stop - 1  # nothing is in flight at a segment's end


def test_a_choice_applies_from_its_round_on() -> None:
    first, second = (Choice(round=r, W=1, R=R, depth=1, codec="fp32") for r, R in ((0, 1), (4, 2)))
    plan = segments(9, depth=1, choices=[first, second])
    assert [(s.start, s.stop, s.tuning) for s in plan] == [(0, 4, first), (4, 9, second)]


def evaluations(plan: list[Segment], schedule: Schedule) -> list[int]:
    return [r + 1 for segment in plan for r in segment.rounds if schedule.is_evaluation(r + 1)]


def test_evaluations_are_where_the_contract_asks_and_after_the_last_round() -> None:
    choices = [Choice(round=r, W=1, R=1, depth=1, codec="fp32") for r in (0, 4)]
    for plan in (segments(7, depth=1), segments(7, depth=1, choices=choices)):
        assert evaluations(plan, schedule(7, every=3)) == [3, 6, 7]


def test_the_rounds_that_fill_the_pipeline_and_a_slow_first_update_are_not_measured() -> None:
    (segment,) = segments(20, depth=3)
    assert segment.measured == range(4, 20)
    assert replace(segment, stop=5).measured == range(2, 5)  # at least half are measured
    assert replace(segment, stop=1).measured == range(1)


def test_held_out_rows_are_scored_in_parts() -> None:
    assert list(schedule(1).held_out_parts("test")) == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]

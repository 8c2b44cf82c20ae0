"""The order of work depends on settings and round only."""

from hypothesis import given
from hypothesis import strategies as st

import celu
from celu.config.job import Choice
from celu.engine.schedule import Schedule, Segment, planned_segments


def segments(
    num_rounds: int, depth: int, every: int, choices: list[Choice] | None = None
) -> list[Segment]:
    job = celu.Job(
        rounds=num_rounds,
        hosts={"host": celu.HostTerms()},
        method=celu.Method(depth=depth),
        choices=choices or [],
    )
    return list(planned_segments(job, Schedule(num_rounds, 10, every, test_rows=10, part_rows=4)))


def sends(plan: list[Segment]) -> list[list[int]]:
    return [list(segment.sends_in(round_)) for segment in plan for round_ in segment.rounds]


def test_with_depth_1_each_round_sends_its_own_activation() -> None:
    assert sends(segments(5, depth=1, every=100)) == [[0], [1], [2], [3], [4]]


def test_with_depth_3_activations_are_sent_two_rounds_ahead() -> None:
    assert sends(segments(6, depth=3, every=100)) == [[0, 1, 2], [3], [4], [5], [], []]


def test_no_activation_is_sent_ahead_of_an_evaluation() -> None:
    assert sends(segments(6, depth=3, every=3)) == [[0, 1, 2], [], [], [3, 4, 5], [], []]


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 15), st.sets(st.integers(1, 45)))
def test_every_activation_is_sent_once_in_order_and_never_too_early(
    num_rounds: int, depth: int, every: int, changes: set[int]
) -> None:
    choices = [Choice(round=r, W=1, R=1, depth=depth, codec="fp32") for r in (0, *sorted(changes))]
    sent: list[int] = []
    for segment in segments(num_rounds, depth, every, choices):
        for round_ in segment.rounds:
            sent += segment.sends_in(round_)
            assert sent[-1] >= round_  # the awaited round has been sent
            assert sent[-1] - round_ < depth
        assert sent[-1] == segment.stop - 1  # nothing is in flight at a segment's end
    assert sent == list(range(num_rounds))


def test_the_last_round_is_evaluated() -> None:
    assert [segment.stop for segment in segments(7, depth=1, every=3)] == [3, 6, 7]


def test_a_choice_applies_from_its_round_on() -> None:
    first, second = (Choice(round=r, W=1, R=R, depth=1, codec="fp32") for r, R in ((0, 1), (4, 2)))
    plan = segments(9, depth=1, every=3, choices=[first, second])
    assert [(s.start, s.stop, s.tuning) for s in plan] == [
        (0, 3, first), (3, 4, first), (4, 6, second), (6, 9, second)
    ]  # fmt: skip


def test_a_change_of_tuning_alone_does_not_cause_an_evaluation() -> None:
    choices = [Choice(round=r, W=1, R=1, depth=1, codec="fp32") for r in (0, 4)]
    plan = segments(7, depth=1, every=3, choices=choices)
    assert [(s.stop, s.evaluates) for s in plan] == [(3, True), (4, False), (6, True), (7, True)]


def test_held_out_rows_are_scored_in_parts() -> None:
    schedule = Schedule(1, 1, 1, test_rows=10, part_rows=4)
    assert list(schedule.test_parts()) == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]

"""The order of work is a function of settings and round."""

from hypothesis import given
from hypothesis import strategies as st

from celu.engine.schedule import Schedule


def schedule(num_rounds: int, depth: int, every: int) -> Schedule:
    return Schedule(num_rounds, 0, depth, every, test_rows=10, part_rows=4)


def test_with_depth_1_each_round_sends_its_own_activation() -> None:
    plan = schedule(5, depth=1, every=100)
    assert [list(plan.sends_in(r)) for r in range(5)] == [[0], [1], [2], [3], [4]]


def test_with_depth_3_two_rounds_are_ahead() -> None:
    plan = schedule(6, depth=3, every=100)
    assert [list(plan.sends_in(r)) for r in range(6)] == [[0, 1, 2], [3], [4], [5], [], []]


def test_nothing_is_sent_past_an_evaluation() -> None:
    plan = schedule(6, depth=3, every=3)
    assert [list(plan.sends_in(r)) for r in range(6)] == [[0, 1, 2], [], [], [3, 4, 5], [], []]


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 15))
def test_every_round_is_sent_once_in_order_and_never_too_early(
    num_rounds: int, depth: int, every: int
) -> None:
    plan = schedule(num_rounds, depth, every)
    sent: list[int] = []
    for round_ in range(num_rounds):
        sent += plan.sends_in(round_)
        assert sent[-1] >= round_  # what is waited for has been sent
        assert sent[-1] - round_ < depth
        if plan.evaluates_after(round_):
            assert sent[-1] == round_
    assert sent == list(range(num_rounds))


def test_the_last_round_is_evaluated() -> None:
    plan = schedule(7, depth=1, every=3)
    assert [r for r in range(7) if plan.evaluates_after(r)] == [2, 5, 6]


def test_held_out_rows_are_scored_in_parts() -> None:
    assert list(schedule(1, 1, 1).test_parts()) == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]

"""Rounds and seconds to an AUC, computed from the evaluations of a run."""

import math

import numpy as np
import pytest

from bench.codec import EVERY, LONGER, _rounds_ratio
from bench.curves import Run
from bench.real_path import RealPath
from celu.errors import ConfigError


def test_a_target_is_interpolated_between_two_evaluations() -> None:
    run = Run([(10, 2.0, 0.6), (20, 4.0, 0.7), (30, 9.0, 0.8)])
    assert run.reached(0.7) == (20, 4.0)
    assert run.reached(0.75) == pytest.approx((25, 6.5))
    assert run.reached(0.55) == pytest.approx((5, 1.0))
    assert run.reached(0.81) is None


def test_candidates_of_a_trial_are_not_interpolated() -> None:
    # Both were evaluated at round 20: the second reached the target then, not in between.
    run = Run([(20, 4.0, 0.7), (20, 6.0, 0.8)])
    assert run.reached(0.75) == (20, 6.0)


def test_the_best_auc_counts_only_the_rounds_so_far() -> None:
    run = Run([(10, 2.0, 0.6), (20, 4.0, 0.7), (30, 9.0, 0.65)])
    assert run.best_by(15) == 0.6
    assert run.best_by(30) == 0.7
    assert run.best_by(5) == 0.5


def test_a_share_of_the_rounds_to_the_best_auc() -> None:
    run = Run([(10, 2.0, 0.6), (20, 4.0, 0.7), (30, 9.0, 0.65)])
    assert run.best_by_share(0.7) == 0.6
    assert run.best_by_share(1.0) == 0.7
    assert Run([]).best_by_share(0.7) == 0.5


def saturating(rounds: int, slower: float = 1.0) -> list[float]:
    return [0.6 + 0.03 * math.log(EVERY * n / slower) for n in range(1, rounds // EVERY + 1)]


def test_a_codec_that_needs_as_many_rounds_has_a_ratio_of_one() -> None:
    assert _rounds_ratio(saturating(520), saturating(520), 400) == pytest.approx(1.0)


def test_a_codec_that_needs_a_tenth_more_has_a_ratio_of_1_1() -> None:
    assert _rounds_ratio(saturating(520, slower=1.1), saturating(520), 400) == pytest.approx(
        1.1, abs=0.01
    )


def test_noise_in_evaluations_hardly_changes_the_ratio() -> None:
    random = np.random.default_rng(1)
    noisy = [auc + random.normal(0, 0.001) for auc in saturating(520)]
    assert _rounds_ratio(noisy, saturating(520), 400) == pytest.approx(1.0, abs=0.02)


def test_an_auc_that_is_never_reached_counts_as_reached_at_the_end() -> None:
    assert _rounds_ratio(saturating(520, slower=5), saturating(520), 400) > LONGER


def test_a_real_path_is_named_by_two_namespaces_and_an_address() -> None:
    path = RealPath.read("one,two,10.0.0.1")
    assert path.command_prefix()["host"] == ["ip", "netns", "exec", "two"]
    for wrong in ("one,two", "one,two,10.0.0.1,more", "one,t w o,10.0.0.1", ""):
        with pytest.raises(ConfigError, match="--between"):
            RealPath.read(wrong)

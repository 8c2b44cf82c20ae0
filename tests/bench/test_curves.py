"""Rounds and seconds to an AUC, read off a run's evaluations by hand."""

import pytest

from celu.bench.codec import EVERY, _over, _reached
from celu.bench.e2e import _Run
from celu.bench.real_path import RealPath
from celu.errors import ConfigError


def test_a_target_is_reached_between_two_evaluations() -> None:
    run = _Run([(10, 2.0, 0.6), (20, 4.0, 0.7), (30, 9.0, 0.8)], [])
    assert run.reached(0.7) == (20, 4.0)
    assert run.reached(0.75) == pytest.approx((25, 6.5))
    assert run.reached(0.55) == pytest.approx((5, 1.0))
    assert run.reached(0.81) is None


def test_no_line_is_drawn_between_candidates_of_a_trial() -> None:
    # The second was at round 20 as well, and the target was met there: at its time, not between.
    run = _Run([(20, 4.0, 0.7), (20, 6.0, 0.8)], [])
    assert run.reached(0.75) == (20, 6.0)


def test_the_best_so_far_is_of_rounds_so_far() -> None:
    run = _Run([(10, 2.0, 0.6), (20, 4.0, 0.7), (30, 9.0, 0.65)], [])
    assert run.best_by(15) == 0.6
    assert run.best_by(30) == 0.7


def test_a_codec_that_needs_as_many_rounds_has_a_ratio_of_one() -> None:
    curve = [0.5, 0.6, 0.65, 0.7, 0.72, 0.73, 0.74, 0.745, 0.75, 0.752, 0.754]
    assert _over(curve, curve, 10 * EVERY) == pytest.approx(1.0)
    late = [0.5, *curve]  # everything one evaluation later
    shares = [(n + 1) / n for n in (4, 5, 6, 7, 8, 9, 10)]
    assert _over(late, curve, 10 * EVERY) == pytest.approx(sum(shares) / len(shares))


def test_an_auc_that_is_never_reached_counts_as_reached_at_the_end() -> None:
    assert _reached([0.5, 0.6, 0.6], 0.9) == 2 * EVERY


def test_a_real_path_is_named_by_two_namespaces_and_an_address() -> None:
    path = RealPath.read("one,two,10.0.0.1")
    assert path.inside()["host"] == ["ip", "netns", "exec", "two"]
    for wrong in ("one,two", "one,two,10.0.0.1,more", "one,t w o,10.0.0.1", ""):
        with pytest.raises(ConfigError, match="--between"):
            RealPath.read(wrong)

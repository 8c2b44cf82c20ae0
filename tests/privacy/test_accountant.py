"""The accountant of Gaussian noise, compared with Google's `dp-accounting`."""

from __future__ import annotations

import math

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from celu.privacy.accountant import gaussian_delta, gaussian_epsilon, gaussian_mu


@pytest.mark.parametrize("exposures", [1, 5, 60])
@pytest.mark.parametrize("noise_multiplier", [1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_epsilon_is_that_of_two_other_accountants(
    noise_multiplier: float, exposures: int, delta: float
) -> None:
    ours = gaussian_epsilon(gaussian_mu(noise_multiplier, exposures), delta)
    # Two rows of clipped Z are at most twice the clip apart.
    event = SelfComposedDpEvent(GaussianDpEvent(noise_multiplier / 2), exposures)
    numeric, bound = PLDAccountant(), RdpAccountant()
    assert ours <= bound.compose(event).get_epsilon(delta)
    assert ours == pytest.approx(numeric.compose(event).get_epsilon(delta), rel=2e-3)


def test_delta_is_that_of_the_definition() -> None:
    for mu, epsilon in [(0.1, 0.0), (1.0, 0.5), (3.0, 8.0), (0.5, 2.0)]:
        exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )
        assert gaussian_delta(mu, epsilon) == pytest.approx(exact, rel=1e-9)


def test_epsilon_grows_with_exposures_and_falls_with_noise_to_the_ends_of_floats() -> None:
    by_exposures = [gaussian_epsilon(gaussian_mu(1.0, n), 1e-6) for n in (1, 2, 10, 10_000)]
    assert by_exposures == sorted(by_exposures) and by_exposures[0] < by_exposures[1]
    by_noise = [gaussian_epsilon(gaussian_mu(m, 1), 1e-6) for m in (1e-3, 1.0, 1e3, 1e9)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert by_noise[-1] == 0.0 and math.isfinite(by_noise[0])


def test_epsilon_is_never_too_small_for_its_delta() -> None:
    for mu in (0.01, 0.3, 2.0, 50.0, 2000.0):
        for delta in (1e-3, 1e-6, 1e-12):
            assert gaussian_delta(mu, gaussian_epsilon(mu, delta)) <= delta

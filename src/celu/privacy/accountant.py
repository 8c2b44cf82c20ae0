"""What Gaussian noise on Z guarantees for one row: epsilon and delta over all of its exposures.

Two rows of Z are at most twice the clip apart, so one exposure is a Gaussian mechanism with
mu = 2 / noise_multiplier, however the host's columns of the row are replaced. n exposures, each of
which may depend on those before it, are one with mu * sqrt(n): exactly, not as a bound (Dong, Roth
and Su, "Gaussian Differential Privacy", 2022, corollary 3.3). Epsilon at a delta then follows from
Balle and Wang, "Improving the Gaussian Mechanism", ICML 2018, theorem 8.

The host's weights are taken as given. What they have learned from the row shows in the Z of other
rows too, and no figure here covers that.
"""

from __future__ import annotations

import math

_STEPS = 200  # of a bisection: until floats end


def gaussian_mu(noise_multiplier: float, exposures: float) -> float:
    """The mu of all exposures of a row."""
    return 2 / noise_multiplier * math.sqrt(exposures)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The least delta at this epsilon."""
    above = _log_phi(mu / 2 - epsilon / mu)
    below = epsilon + _log_phi(-mu / 2 - epsilon / mu)
    return max(0.0, -math.exp(above) * math.expm1(min(0.0, below - above)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least epsilon at this delta, rounded up in the last bits."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)
    return high


def _log_phi(x: float) -> float:
    """The logarithm of the normal distribution function."""
    if x > -30:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    # Its asymptotic series, whose first terms are exact to a float's precision there.
    terms = 1 - 1 / x**2 + 3 / x**4 - 15 / x**6 + 105 / x**8
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log(terms)

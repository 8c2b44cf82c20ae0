"""Sentences that compare a result with the paper, computed from the two numbers."""

from __future__ import annotations

_CLOSE = 0.1


def compare_with_paper(name: str, value: float | None, paper: float) -> str:
    """How far a figure is from the paper's, in a sentence."""
    if value is None:
        return f"{name}: none here, as a run did not reach the target; {paper:.2f} in the paper."
    apart = value / paper - 1
    if abs(apart) <= _CLOSE:
        return f"{name}: {value:.2f} here, {paper:.2f} in the paper: within {_CLOSE:.0%} of it."
    way = "above" if apart > 0 else "below"
    opposite = (value - 1) * (paper - 1) < 0
    side = " and on the other side of 1" if opposite else ""
    return f"{name}: {value:.2f} here, {paper:.2f} in the paper: {abs(apart):.0%} {way} it{side}."


def describe_trend(name: str, values: dict[int, float], expected: str) -> str:
    """Whether the values fall or rise from first to last, and whether the paper expects that."""
    (first, a), *_, (last, b) = values.items()
    found = "falls" if b < a else "rises"
    verdict = (
        "as the paper says" if found == expected else f"where the paper says that it {expected}"
    )
    return f"{name} {found} from {a:.3g} at {first} to {b:.3g} at {last}, {verdict}."

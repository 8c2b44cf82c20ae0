"""What a result says about the paper's, computed from the two numbers."""

from __future__ import annotations

_CLOSE = 0.1


def against_paper(name: str, value: float | None, paper: float) -> str:
    """Whether a figure is the paper's, in a sentence."""
    if value is None:
        return f"{name}: none here, as a run did not reach the target; {paper:.2f} in the paper."
    apart = value / paper - 1
    if abs(apart) <= _CLOSE:
        return f"{name}: {value:.2f} here, {paper:.2f} in the paper: within {_CLOSE:.0%} of it."
    way = "above" if apart > 0 else "below"
    sides = (value - 1) * (paper - 1)
    turned = " and on the other side of 1" if sides < 0 else ""
    return f"{name}: {value:.2f} here, {paper:.2f} in the paper: {abs(apart):.0%} {way} it{turned}."


def trend(name: str, values: dict[int, float], expected: str) -> str:
    """Whether values fall or rise from the first to the last as a theory says."""
    (first, a), *_, (last, b) = values.items()
    found = "falls" if b < a else "rises"
    verdict = (
        "as the paper says" if found == expected else f"where the paper says that it {expected}"
    )
    return f"{name} {found} from {a:.3g} at {first} to {b:.3g} at {last}, {verdict}."

"""Tags: stable, evenly distributed, and sorted by all their bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celu.data.tags import ascending, commitment, digest_rows, held_out, make_tags


def test_tags_and_digests_are_pinned() -> None:
    # Parties on different releases must agree: a change here is a change of the protocol.
    tags = make_tags(["a", "ü", ""], 1)
    assert [bytes(tag).hex()[:16] for tag in tags] == [
        "4e2c6ada622e8e99",
        "e70280ca73286896",
        "eb30da6436698928",
    ]
    assert commitment(tags)[:16] == "b87058ee577de11c"
    assert digest_rows(tags).hex()[:16] == "e0342e281a749d3b"


def test_tags_differ_between_seeds() -> None:
    assert not (make_tags(["a", "b"], 1) == make_tags(["a", "b"], 2)).all(axis=1).any()
    assert make_tags([], 1).shape == (0, 16)


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=60), st.booleans())
def test_ascending_is_the_order_of_the_bytes(tags: list[bytes], alike: bool) -> None:
    if alike:  # ties in the first half
        tags = [bytes(8) + tag[8:] for tag in tags]
    array = np.frombuffer(b"".join(tags), np.uint8).reshape(-1, 16)
    assert [bytes(array[i]) for i in ascending(array)] == sorted(tags)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.999])
def test_the_requested_share_is_held_out_independent_of_the_order(fraction: float) -> None:
    tags = make_tags(map(str, range(20_000)), 1)
    out = held_out(tags, fraction)
    assert out.mean() == pytest.approx(fraction, abs=0.01)
    assert out[ascending(tags)][:5000].mean() == pytest.approx(fraction, abs=0.02)
    more = held_out(tags, min(0.9999, fraction + 0.1))
    assert (more | ~out).all(), "a larger share contains the smaller one"

"""The bench of online serving measures asks and calls between two processes."""

from __future__ import annotations

from bench.serve import TURN, ask_and_unary_seconds


def test_the_bench_compares_as_many_asks_as_calls() -> None:
    seconds = ask_and_unary_seconds(turns=2)
    assert {name: len(samples) for name, samples in seconds.items()} == {
        "ask": 2 * TURN,
        "unary call": 2 * TURN,
    }
    assert all(sample > 0 for samples in seconds.values() for sample in samples)

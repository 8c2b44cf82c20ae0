"""The record of a fuzzing run: what each decoder took, and sums that the docs quote."""

from __future__ import annotations

from fuzz.record import Fuzzed, to_json


def test_the_figures_are_sums_over_the_decoders_and_a_failed_one_is_counted() -> None:
    fuzzed = [Fuzzed("wire", 59.5, 1000, 2, False), Fuzzed("file job.toml", 60.1, 20, 0, True)]
    record = to_json(fuzzed, "python -m tests.fuzz.coverage --seconds 120 --out fuzz.json")
    assert record["figures"] == {
        "decoders": 2,
        "executions": 1020,
        "seconds": 119.6,
        "added": 2,
        "failures": 1,
    }
    assert [row["failed"] for row in record["rows"]] == [False, True]
    assert record["command"].startswith("python -m tests.fuzz.coverage --seconds 120")

"""A small part of the fuzzing that `python -m tests.fuzz` does with millions of frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celu.errors import CeluError
from fuzz.engine import Report, accept_all, attack, fuzz
from fuzz.files import make_files
from fuzz.frames import MUTATIONS, Frame
from fuzz.targets import Target, open_targets

FRAMES = 30_000


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Target]]:
    with open_targets(tmp_path_factory.mktemp("alignment")) as made:
        yield made


def test_every_reader_accepts_valid_messages(targets: list[Target]) -> None:
    assert sum(map(accept_all, targets)) == sum(len(target.messages) for target in targets)


def test_mutated_frames_are_accepted_or_refused_without_side_effects_and_memory_stays_flat(
    targets: list[Target],
) -> None:
    report = fuzz(targets, FRAMES, seed=20260101)
    assert report.frames >= FRAMES
    assert report.accepted > FRAMES / 10, "most mutations leave the frames before them valid"
    assert report.refusals.total() > FRAMES / 10
    assert set(report.by_target) == {target.name for target in targets}
    assert report.growth_mib < 48


@given(st.data(), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_frames_that_hypothesis_generates_are_accepted_or_refused(
    targets: list[Target], data: st.DataObject, random: Random
) -> None:
    target = data.draw(st.sampled_from(targets))
    messages = data.draw(st.lists(st.sampled_from(target.messages), min_size=1, max_size=3))
    mutation = data.draw(st.sampled_from(MUTATIONS))
    stream = [Frame.of(message, number) for number, message in enumerate(messages)]
    attack(target, mutation(random, stream), Report())


def test_mutated_files_are_read_or_refused_by_name(tmp_path: Path) -> None:
    random, refused = Random(7), 0
    for reader in make_files(tmp_path):
        file = tmp_path / reader.file
        valid = file.read_bytes()
        reader.read(tmp_path)
        for number in range(150):
            file.write_bytes(reader.mutate(random, valid))
            try:
                reader.read(tmp_path)
            except CeluError as error:
                refused += 1
                assert len(str(error)) < 500_000
            except Exception as error:
                raise AssertionError(f"{reader.name}, mutation {number}") from error
            file.write_bytes(valid)
    assert refused > 400

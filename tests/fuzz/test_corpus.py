"""Every decoder decodes or refuses every input of its corpus, which fuzzing has found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.corpus import FOLDER, MAX_BYTES, read_corpus
from fuzz.decoders import Decoder, check, open_decoders


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Decoder]]:
    with open_decoders(tmp_path_factory.mktemp("decoders")) as opened:
        yield opened


def test_every_input_of_the_corpus_is_decoded_or_refused(decoders: list[Decoder]) -> None:
    for decoder in decoders:
        for number, data in enumerate([*decoder.seeds, *read_corpus(decoder)]):
            try:
                check(decoder, data)
            except Exception as error:
                raise AssertionError(f"{decoder.name}, input {number}: {data[:100]!r}") from error


def test_each_file_of_the_corpus_is_small_and_belongs_to_a_decoder(decoders: list[Decoder]) -> None:
    known = {decoder.file_name for decoder in decoders}
    for path in FOLDER.iterdir():
        assert path.name in known
        assert path.stat().st_size <= 2 * MAX_BYTES  # failures are added manually

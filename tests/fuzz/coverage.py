"""Fuzz with coverage as the guide: `python -m tests.fuzz.coverage --seconds 3600`, in a checkout.

Needs atheris (`pip install atheris`), which celu itself does not. Inputs that reach new code are
added to the corpus, which the tests decode without atheris. An input that fails is printed; add it
to the corpus once the decoder is fixed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

try:
    import atheris
except ImportError:
    sys.exit("expected the package atheris; install it with: pip install atheris")

with atheris.instrument_imports(include=["celu", "websockets"]):
    import torch

    from fuzz.corpus import extend_corpus, read_corpus
    from fuzz.decoders import MAX_SECONDS, Decoder, check, open_decoders

MAX_INPUT_BYTES = 32 * 1024
OPTIONS = (
    f"-max_len={MAX_INPUT_BYTES}",
    f"-timeout={12 * MAX_SECONDS:.0f}",  # by the wall clock, of a machine that may be busy
    "-rss_limit_mb=4096",
    "-malloc_limit_mb=512",
    "-verbosity=0",
    "-print_final_stats=1",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.coverage", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="for all decoders together")
    parser.add_argument("--target", action="append", help="a decoder by name; by default all")
    parser.add_argument("--list", action="store_true", help="print the names of the decoders")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "names"
        _in_child(lambda opened: names.write_text("\n".join(one.name for one in opened)))
        known = names.read_text().split("\n")
    if options.list:
        print("\n".join(known))
        return
    chosen = options.target or known
    if unknown := set(chosen) - set(known):
        sys.exit(f"--target: expected names that --list prints, got {', '.join(unknown)}")
    seconds = max(1, options.seconds // len(chosen))
    failed = [name for name in chosen if not fuzz(name, seconds)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def fuzz(name: str, seconds: int) -> bool:
    """Fuzz one decoder and extend its corpus; returns whether every input passed."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, failures = Path(folder) / "corpus", Path(folder) / "failures"
        for made in (corpus, failures):
            made.mkdir()

        def find(opened: list[Decoder]) -> None:
            decoder = next(one for one in opened if one.name == name)
            for number, data in enumerate([*decoder.seeds, *read_corpus(decoder)]):
                (corpus / f"known-{number}").write_bytes(data)
            run_libfuzzer(decoder, seconds, corpus, failures)

        def extend(opened: list[Decoder]) -> None:
            decoder = next(one for one in opened if one.name == name)
            found = [path.read_bytes() for path in corpus.iterdir()]
            added = extend_corpus(decoder, found)
            print(f"{name}: {len(found)} inputs, {added} added to the corpus", flush=True)

        status = _in_child(find)
        for path in sorted(failures.iterdir()):
            encoded = base64.b64encode(path.read_bytes()).decode("ascii")
            print(f"{name}: {path.name}: {encoded}", flush=True)
        _in_child(extend)
        return status == 0 and not list(failures.iterdir())


def run_libfuzzer(decoder: Decoder, seconds: int, corpus: Path, failures: Path) -> None:
    """Fuzz; ends the process."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return decoder.mutate(random, data)[:max_size]

    def decode(data: bytes) -> None:
        try:
            check(decoder, data)
        except BaseException:
            (failures / f"failure-{hashlib.sha256(data).hexdigest()[:16]}").write_bytes(data)
            raise

    arguments = [f"-max_total_time={seconds}", f"-artifact_prefix={failures}/", *OPTIONS]
    atheris.Setup(
        ["fuzz", *arguments, str(corpus)],
        decode,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


def _in_child(work: Callable[[list[Decoder]], object]) -> int:
    """Run in a process of its own, because libFuzzer ends its process; returns the status."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = 1
        try:
            with open_decoders(Path(folder)) as opened:
                work(opened)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


if __name__ == "__main__":
    main()

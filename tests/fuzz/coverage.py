"""Fuzz with coverage as the guide: `python -m tests.fuzz.coverage --seconds 3600`, in a checkout.

Needs atheris (`pip install atheris`), which celu itself does not. Inputs that reach new code are
added to the corpus, which the tests decode without atheris. An input that fails is printed; add it
to the corpus once the decoder is fixed. `--out FILE` records what was fuzzed, after each decoder.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import mmap
import os
import signal
import sys
import tempfile
import time
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
    from fuzz.record import Fuzzed, to_json

MAX_INPUT_BYTES = 32 * 1024
TIMEOUT_S = 12 * MAX_SECONDS  # of an input, by the wall clock, of a machine that may be busy
GRACE_S = 600.0  # to open the decoders, end, and find out which inputs reach new code
OPTIONS = (
    f"-max_len={MAX_INPUT_BYTES}",
    f"-timeout={TIMEOUT_S:.0f}",
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
    parser.add_argument("--out", type=Path, help="where to write the record as JSON")
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
    command = " ".join(["python -m tests.fuzz.coverage", *sys.argv[1:]])
    fuzzed: list[Fuzzed] = []
    for name in chosen:
        fuzzed.append(fuzz(name, seconds))
        if options.out is not None:  # each time: what was done is on record if this one is killed
            text = json.dumps(to_json(fuzzed, command), indent=2) + "\n"
            options.out.write_text(text, encoding="utf-8")
    if failed := [one.decoder for one in fuzzed if one.failed]:
        sys.exit(f"failed: {', '.join(failed)}")


def fuzz(name: str, seconds: int) -> Fuzzed:
    """Fuzz one decoder and extend its corpus. A decoder that does not end is killed, and failed."""
    executions, num_added = Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        corpus, failures = Path(folder) / "corpus", Path(folder) / "failures"
        for made in (corpus, failures):
            made.mkdir()

        def find(opened: list[Decoder]) -> None:
            decoder = next(one for one in opened if one.name == name)
            for number, data in enumerate([*decoder.seeds, *read_corpus(decoder)]):
                (corpus / f"known-{number}").write_bytes(data)
            run_libfuzzer(decoder, seconds, corpus, failures, executions)

        def extend(opened: list[Decoder]) -> None:
            decoder = next(one for one in opened if one.name == name)
            found = [path.read_bytes() for path in corpus.iterdir()]
            num_added.add(extend_corpus(decoder, found))
            print(f"{name}: {len(found)} inputs, {num_added.value} added", flush=True)

        started = time.monotonic()
        found_all = _in_child(find, seconds + TIMEOUT_S + GRACE_S) == 0
        took_s = time.monotonic() - started
        for path in sorted(failures.iterdir()):
            encoded = base64.b64encode(path.read_bytes()).decode("ascii")
            print(f"{name}: {path.name}: {encoded}", flush=True)
        extended = _in_child(extend, GRACE_S) == 0
        failed = not found_all or not extended or any(failures.iterdir())
    return Fuzzed(name, round(took_s, 1), executions.value, num_added.value, failed)


def run_libfuzzer(
    decoder: Decoder, seconds: int, corpus: Path, failures: Path, executions: Counter
) -> None:
    """Fuzz; ends the process."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return decoder.mutate(random, data)[:max_size]

    def decode(data: bytes) -> None:
        executions.add(1)
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


class Counter:
    """A number that a forked process changes and its parent reads, however the former ends."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)

    @property
    def value(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    def add(self, number: int) -> None:
        self._shared[:8] = (self.value + number).to_bytes(8, "little")


def _in_child(work: Callable[[list[Decoder]], object], limit_s: float = GRACE_S) -> int:
    """Run in a process of its own, because libFuzzer ends its process; returns the status."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child:
            return _wait_for(child, limit_s)
        status = 1
        try:
            with open_decoders(Path(folder)) as opened:
                work(opened)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


def _wait_for(child: int, limit_s: float) -> int:
    """Wait for a process and return its status; kill it after the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.05)


if __name__ == "__main__":
    main()

"""Ctrl-C during a run, with real signals to this process."""

from __future__ import annotations

import io
import os
import signal

import pytest
from rich.console import Console

from celu.cli.interrupt import InterruptHandler
from celu.events import CheckpointTaken, RoundDone, TrainingResumed, TrainingStarted
from celu.ranks.slices import Slices


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_stops_at_the_next_checkpoint(output: io.StringIO) -> None:
    with InterruptHandler(Console(file=output, width=200), "airline") as handler:
        handler.event(TrainingStarted(num_rounds=9))
        handler.event(CheckpointTaken(round=3, seconds=1.0))  # before Ctrl-C
        interrupt()
        handler.event(RoundDone(round=4, seconds=1.0))
        with pytest.raises(KeyboardInterrupt):
            handler.event(CheckpointTaken(round=6, seconds=1.0))
    assert "stopping at the next checkpoint" in output.getvalue()
    assert "stopping after round 6" in output.getvalue()


def test_the_second_ctrl_c_stops_immediately(output: io.StringIO) -> None:
    with InterruptHandler(Console(file=output), "airline") as handler:
        handler.event(TrainingResumed(round=3, num_rounds=9))
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_before_training_the_first_ctrl_c_stops_immediately(output: io.StringIO) -> None:
    with InterruptHandler(Console(file=output), "airline"), pytest.raises(KeyboardInterrupt):
        interrupt()


def test_the_previous_signal_handler_is_restored(output: io.StringIO) -> None:
    previous = signal.getsignal(signal.SIGINT)
    with InterruptHandler(Console(file=output), "airline"):
        assert signal.getsignal(signal.SIGINT) != previous
    assert signal.getsignal(signal.SIGINT) == previous


class TwoRanks(Slices):
    """The first of two ranks; `other` is whether the other one was interrupted."""

    def __init__(self, *, other: bool) -> None:
        super().__init__(2)
        self.own = range(1)
        self._other = other

    def any(self, found: bool) -> bool:
        return found or self._other


def test_ranks_stop_together_and_torchrun_may_interrupt_one_twice(output: io.StringIO) -> None:
    with InterruptHandler(Console(file=output, width=200), "airline") as handler:
        handler.join(TwoRanks(other=False))
        handler.event(TrainingStarted(num_rounds=9))
        handler.event(CheckpointTaken(round=3, seconds=1.0))
        interrupt()
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            handler.event(CheckpointTaken(round=6, seconds=1.0))
    with InterruptHandler(None, "airline") as handler:
        handler.join(TwoRanks(other=True))
        handler.event(TrainingStarted(num_rounds=9))
        with pytest.raises(KeyboardInterrupt):
            handler.event(CheckpointTaken(round=6, seconds=1.0))

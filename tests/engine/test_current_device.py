"""Parties of one thread compute with their own GPU as the current one. No device is needed."""

from __future__ import annotations

import types
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import celu
from celu.engine.coding import Coding
from celu.engine.device import computing_on
from celu.transport.memory import run_together
from celu.transport.message import Kind, Message
from federation import federation


class Gpus:
    """The current GPU, as torch tells it."""

    def __init__(self) -> None:
        self.current = 0
        self.switches = 0

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        self.switches += 1
        try:
            yield
        finally:
            self.current = before


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    fake = Gpus()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: fake.current)
    monkeypatch.setattr(torch.cuda, "device", fake.device)
    return fake


@types.coroutine
def turn() -> Generator[None, Any, Any]:
    return (yield)


def test_parties_that_take_turns_compute_on_their_own_gpu(gpus: Gpus) -> None:
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def program(index: int) -> str:
        for _ in range(3):
            seen[index].append(gpus.current)
            await turn()
        return f"done {index}"

    async def party(index: int) -> str:
        return await computing_on(torch.device("cuda", index), program(index))

    programs = {str(index): party(index) for index in seen}

    class Busy:
        """A link whose parties make progress."""

        def __init__(self) -> None:
            self.traffic = self.sent = self.received = self
            self.number = 0

        @property
        def messages(self) -> int:
            self.number += 1
            return self.number

    links: Any = [Busy()]
    results = run_together(programs, links)
    assert results == {"0": "done 0", "1": "done 1", "2": "done 2"}
    assert seen == {0: [0, 0, 0], 1: [1, 1, 1], 2: [2, 2, 2]}
    assert gpus.current == 0


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0"])
def test_the_current_device_is_not_switched_for_the_one_that_it_is(gpus: Gpus, device: str) -> None:
    async def program() -> int:
        return 7 + await turn()  # type: ignore[no-any-return]

    work = computing_on(torch.device(device), program())
    work.send(None)
    with pytest.raises(StopIteration) as done:
        work.send(3)
    assert done.value.value == 10
    assert gpus.switches == 0


def test_what_is_sent_thrown_and_closed_reaches_the_work(gpus: Gpus) -> None:
    ends: list[int] = []

    async def program() -> int:
        try:
            assert await turn() == 3
            with pytest.raises(ValueError, match="thrown"):
                await turn()
            await turn()
            return 1
        finally:
            ends.append(gpus.current)

    work = computing_on(torch.device("cuda:1"), program())
    work.send(None)
    work.send(3)
    work.throw(ValueError("thrown"))
    work.close()
    assert ends == [1] and gpus.current == 0


def test_a_message_is_decoded_with_its_own_gpu_as_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[torch.device] = []

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    monkeypatch.setattr("celu.engine.coding.current", current)
    coding = Coding(federation(codec="4bit").job, "host")
    z_BD = torch.randn(8, 6)
    message = coding.pack(Message(Kind.ACTIVATION, tensor=z_BD))
    assert coding.unpack(message, 8).shape == z_BD.shape
    assert entered == [torch.device("cpu")]


def test_a_run_and_a_check_compute_on_the_gpu_of_the_modules(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celu.launch import trial

    monkeypatch.setattr("celu.session.device_of", lambda modules: torch.device("cuda:1"))
    monkeypatch.setattr("celu.launch.trial.device_of", lambda modules: torch.device("cuda:1"))
    seeded: set[int] = set()
    manual_seed = torch.default_generator.manual_seed

    class Generator:
        def manual_seed(self, seed: int) -> None:
            seeded.add(gpus.current)
            manual_seed(seed)

    monkeypatch.setattr(torch, "default_generator", Generator())
    fed = federation(rounds=4)
    celu.simulate(fed.job, fed.guest, fed.hosts)
    assert seeded == {1} and gpus.current == 0
    seeded.clear()
    trial.try_party("host", fed.hosts["host"], fed.job, 32)
    assert seeded == {1} and gpus.current == 0

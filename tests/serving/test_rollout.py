"""When a serving guest changes to another model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from celu.serving.announcement import HostModels
from celu.serving.model_shelf import ModelShelf, ServedModel
from celu.serving.rollout import Rollout

FOREVER_S = 1e6


class Named:
    """A loaded model, of which only the name matters here."""

    def __init__(self, name: str) -> None:
        self.name = name


class Shelf:
    """A folder of models, the newest first."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def scan(self) -> list[str]:
        return self.names

    def load(self, name: str) -> ServedModel:
        return cast(ServedModel, Named(name))

    def unload_except(self, names: Sequence[str]) -> None:
        self.loaded = list(names)


class HostOfAll:
    """A host that has every model loaded."""

    name = "host"
    models: HostModels | None = None

    def has_z(self, model: str) -> bool:
        return True

    def want(self, names: Sequence[str]) -> None:
        self.wanted = list(names)


def serving(settle_s: float) -> tuple[Rollout, Shelf, Any]:
    shelf, host = Shelf(), HostOfAll()
    return Rollout(cast(ModelShelf, shelf), [host], settle_s=settle_s), shelf, host


def changes(rollout: Rollout, shelf: Shelf, count: int) -> list[str]:
    """The models in use after each of `count` new ones arrived."""
    used = []
    for number in range(1, count + 1):
        shelf.names = [str(number), *shelf.names]
        rollout.step()
        assert rollout.current is not None
        used.append(rollout.current.name)
    return used


def test_the_first_change_does_not_wait_since_no_request_uses_an_older_model() -> None:
    rollout, shelf, host = serving(settle_s=FOREVER_S)
    assert changes(rollout, shelf, 2) == ["1", "2"]
    assert host.wanted == shelf.loaded == ["2", "1"]


def test_a_change_waits_until_requests_of_the_one_before_have_ended() -> None:
    assert changes(*serving(settle_s=FOREVER_S)[:2], 4) == ["1", "2", "2", "2"]
    assert changes(*serving(settle_s=0.0)[:2], 4) == ["1", "2", "3", "4"]

"""An interrupted and resumed run ends with the same bits as an uninterrupted one."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import celu
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.writer import InlineWriter
from celu.config.job import Choice, read_job
from celu.config.link import LinkSettings
from celu.config.replay import replay_toml
from celu.errors import CheckpointError
from celu.events import ignore
from celu.session import guest_session, host_session
from celu.transport.memory import memory_links
from checkpoint.disks import QuickDisk
from federation import (
    ROWS,
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    with_weights,
)

TIMES = ("seconds", "evaluating_s")
# Cases name their weighting: the bits of earlier releases must not depend on the default of this.
COSINE = celu.Method(weighting="cosine")


class Noisy(nn.Module):
    """A module with dropout, and a running mean in its buffers."""

    def __init__(self, tower: nn.Module, width: int) -> None:
        super().__init__()
        self.tower, self.norm, self.drop = tower, nn.BatchNorm1d(width), nn.Dropout(0.3)

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.drop(self.norm(self.tower(**inputs)))
        return z


class Dense(nn.Module):
    """A module without sparse gradients, which momentum does not support."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        z: Tensor = self.layer(numbers)
        return z


def noisy() -> Federation:
    method = celu.Method(R=3, W=3, depth=2, weighting="cosine")
    fed = federation(method=method, checkpoint={"every": 3})
    host = fed.hosts["host"]
    fed.hosts["host"] = celu.Host(bottom=Noisy(host.bottom, 6), train=host.train, test=host.test)
    return fed


def with_momentum() -> Federation:
    optimizer = celu.Optimizer(name="sgd", lr=0.05, momentum=0.9)
    fed = federation(method=COSINE, optimizer=optimizer, checkpoint={"every": 2})
    host, guest = fed.hosts["host"], fed.guest
    fed.hosts["host"] = celu.Host(bottom=Dense(6), train=host.train, test=host.test)
    fed.guest = celu.Guest(
        top=guest.top, loss=guest.loss, train=guest.train, test=guest.test, bottom=Dense(5)
    )
    return fed


def changing() -> Federation:
    """W, R, depth and codec change at rounds 4 and 9."""
    choices = [
        Choice(round=0, W=5, R=4, depth=1, codec="fp32"),
        Choice(round=4, W=3, R=2, depth=4, codec="int8"),
        Choice(round=9, W=4, R=3, depth=2, codec="bf16"),
    ]
    return federation(method=COSINE, choices=choices, checkpoint={"every": 2})


def plain(every: int, **job: Any) -> Callable[[], Federation]:
    given = {n: job.pop(n) for n in ("R", "W", "depth", "weighting") if n in job}
    method = {"weighting": "cosine", **given}

    def build() -> Federation:
        return federation(method=celu.Method(**method), checkpoint={"every": every}, **job)

    return build


CASES: dict[str, Callable[[], Federation]] = {
    "vanilla": plain(1, R=1),
    "celu": plain(3, R=5, W=5),
    "fedbcd": plain(3, R=4, W=1, weighting="none"),
    "depth 2": plain(1, R=1, depth=2),
    "depth 8": plain(3, R=3, W=4, depth=8),
    "int8": plain(2, R=2, W=3, depth=3, codec="int8"),
    "4bit": plain(3, R=3, W=3, depth=5, codec="4bit"),
    "compensated": plain(3, R=3, W=3, depth=5, codec="4bit", weighting="compensated"),
    "compensated regression": plain(
        3, R=3, W=3, depth=3, codec="2bit", weighting="compensated", loss="regression"
    ),
    "zstd": plain(4, R=2, W=2, depth=2, codec="bf16+zstd"),
    "two hosts": plain(3, R=3, W=3, depth=4, hosts={"one": 6, "two": 3}),
    "three hosts": plain(3, R=2, depth=2, hosts={"one": 4, "two": 3, "three": 5}, codec="int8"),
    "labels only": plain(3, R=3, W=3, guest_has_features=False),
    "blocks": plain(
        3, R=3, W=5, depth=2, order=celu.Order(shuffle="blocks", block_rows=8, window_blocks=6)
    ),
    "adam": plain(3, R=3, W=3, optimizer=celu.Optimizer(name="adam", lr=0.01)),
    "sgd": plain(3, R=3, W=3, optimizer=celu.Optimizer(name="sgd", lr=0.05)),
    "momentum": with_momentum,
    "dropout": noisy,
    "changing": changing,
    "as often as evaluations": lambda: federation(method=COSINE),
    "guest alone": plain(3, R=3, W=3, hosts={}),
}


def weighted() -> Federation:
    fed = plain(3, R=3, W=3, depth=3, weighting="compensated")()
    return with_weights(fed, torch.arange(ROWS) % 5, class_weights="balanced")


# Cases that no earlier release has, so there are no bits of one to compare with.
NEW_CASES: dict[str, Callable[[], Federation]] = {
    "residual networks": plain(
        3, R=3, W=3, depth=2, weighting="compensated", is_residual=True, preset="tabular"
    ),
    "cosine": plain(
        3, R=3, W=4, depth=3, optimizer=celu.Optimizer(schedule="cosine", warmup_rounds=5)
    ),
    "linear": plain(
        3, R=3, W=4, depth=3, optimizer=celu.Optimizer(schedule="linear", final_factor=0.1)
    ),
    "adamw": plain(
        2,
        R=3,
        W=3,
        depth=2,
        optimizer=celu.Optimizer(
            name="adamw",
            lr=0.01,
            party_lr={"host": 0.02},
            embedding_lr=0.05,
            clip_norm=0.1,
            schedule="step",
            step_rounds=4,
        ),
    ),
    "weights": weighted,
}


def checkpoints(folder: Path, fed: Federation) -> dict[str, Checkpoints]:
    names = (fed.job.guest, *fed.hosts)
    return {name: Checkpoints(folder / name, QuickDisk(), InlineWriter()) for name in names}


def attempt(
    fed: Federation, folder: Path, turns: int | None = None, chance: random.Random | None = None
) -> tuple[celu.Result | None, int]:
    """Run all parties for `turns` turns, or to the end; the guest's result, and the turns taken.

    With `chance` the parties take turns in random order instead of round-robin.
    """
    fed = copy.deepcopy(fed)
    stores = checkpoints(folder, fed)
    pairs = {name: memory_links(fed.job.guest, name) for name in fed.hosts}
    programs: dict[str, Any] = {
        name: host_session(
            name, fed.hosts[name], fed.job, pairs[name][1], ignore, checkpoints=stores[name]
        )
        for name in fed.hosts
    }
    links = {name: pair[0] for name, pair in pairs.items()}
    programs[fed.job.guest] = guest_session(
        fed.job.guest, fed.guest, fed.job, links, ignore, checkpoints=stores[fed.job.guest]
    )
    results: dict[str, celu.Result] = {}
    taken = 0
    order = list(programs)
    while len(results) < len(programs) and (turns is None or taken < turns):
        running = [name for name in order if name not in results]
        for name in [chance.choice(running)] if chance else running:
            if turns is not None and taken >= turns:
                break
            taken += 1
            try:
                programs[name].send(None)
            except StopIteration as done:
                results[name] = done.value
    for program in programs.values():
        program.close()
    return (results.get(fed.job.guest) if len(results) == len(programs) else None), taken


def ends(fed: Federation, folder: Path) -> dict[str, Any]:
    """The final checkpoint of every party: tensors, clocks and evaluations."""
    found: dict[str, Any] = {}
    for name in (fed.job.guest, *fed.hosts):
        last = sorted((folder / name / "checkpoints").iterdir())[-1]
        state = json.loads((last / "state.json").read_text())["state"]
        assert state["done"] is True
        found[f"{name}.trainer"] = state["trainer"]
        found[f"{name}.round"] = last.name
        found[f"{name}.evaluations"] = [
            {k: v for k, v in e.items() if k not in (*TIMES, "control_bytes")}
            for e in state["record"]["evaluations"]
        ]
        for key, tensor in load_file(last / "tensors.safetensors").items():
            found[f"{name}.{key}"] = (tensor.dtype, tensor.shape, tensor.numpy().tobytes())
    return found


@pytest.mark.parametrize("case", CASES | NEW_CASES)
def test_interrupted_anywhere_it_ends_with_the_same_bits(case: str, tmp_path: Path) -> None:
    fed = (CASES | NEW_CASES)[case]()
    result, turns = attempt(fed, tmp_path / "whole")
    assert result is not None and result.rounds == 14
    expected = ends(fed, tmp_path / "whole")
    assert_same_bits(weights_of(fed, tmp_path / "whole"), train_in_memory(fed))
    for stop in range(3, turns, max(1, turns // 6)):
        folder = tmp_path / f"{stop}"
        assert attempt(fed, folder, turns=stop)[0] is None
        again, _ = attempt(fed, folder)
        assert again is not None
        assert ends(fed, folder) == expected, stop
        assert again.traffic["bytes_sent"] == result.traffic["bytes_sent"]
        assert again.traffic["bytes_received"] == result.traffic["bytes_received"]
        assert (again.local_steps, again.bubbles) == (result.local_steps, result.bubbles)
        shutil.rmtree(folder)


def test_a_run_does_not_resume_with_other_weights_of_rows(tmp_path: Path) -> None:
    fed = weighted()
    _, turns = attempt(fed, tmp_path / "whole")
    assert attempt(fed, tmp_path / "run", turns=turns // 2)[0] is None
    for other in (
        with_weights(fed, torch.arange(ROWS) % 4, class_weights="balanced"),
        with_weights(fed, torch.arange(ROWS) % 5, class_weights={0: 2.0}),
        with_weights(fed, None),
    ):
        with pytest.raises(CheckpointError, match="weights of rows or classes have changed"):
            attempt(other, tmp_path / "run")
    assert attempt(fed, tmp_path / "run")[0] is not None
    assert ends(fed, tmp_path / "run") == ends(fed, tmp_path / "whole")


def weights_of(fed: Federation, folder: Path) -> dict[str, Tensor]:
    """The weights in every party's last checkpoint, by their names in `Federation`."""
    found = {}
    for name in (fed.job.guest, *fed.hosts):
        last = sorted((folder / name / "checkpoints").iterdir())[-1]
        for key, tensor in load_file(last / "tensors.safetensors").items():
            if key.startswith("weights."):
                rest = key.removeprefix("weights.")
                found[rest if name == fed.job.guest else f"{name}.{rest}"] = tensor
    return found


@pytest.mark.parametrize("seed", range(8))
def test_repeated_interruptions_and_damaged_checkpoints_do_not_change_the_result(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    fed = CASES[chance.choice(["depth 8", "two hosts", "celu", "changing", "4bit"])]()
    attempt(fed, tmp_path / "whole")
    folder = tmp_path / "interrupted"
    for _ in range(6):
        attempt(fed, folder, turns=chance.randrange(5, 60), chance=chance)
        for name in (fed.job.guest, *fed.hosts):
            generations = sorted((folder / name).glob("checkpoints/round-*"))
            if generations and chance.random() < 0.3:  # damaged at one party only
                (chance.choice(generations) / "state.json").write_text("{}")
    result, _ = attempt(fed, folder)
    assert result is not None
    assert ends(fed, folder) == ends(fed, tmp_path / "whole")


def test_restarting_a_finished_run_returns_its_result_at_once(tmp_path: Path) -> None:
    fed = CASES["celu"]()
    first, many = attempt(fed, tmp_path)
    second, few = attempt(fed, tmp_path)
    assert first is not None and second is not None
    assert second.evaluations == first.evaluations and second.rounds == first.rounds
    assert few < many / 3


def test_a_finished_party_repeats_rounds_for_one_that_lost_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    fed = CASES["celu"]()
    attempt(fed, tmp_path)
    expected = ends(fed, tmp_path)
    shutil.rmtree(tmp_path / "host" / "checkpoints" / "round-00000014")
    attempt(fed, tmp_path)
    assert ends(fed, tmp_path) == expected


def test_a_run_that_reached_its_target_does_not_train_further_when_restarted(
    tmp_path: Path,
) -> None:
    evaluation = celu.Evaluation(every=5, metric="loss", target=100.0)
    fed = federation(evaluation=evaluation, checkpoint={"every": 2})
    first, _ = attempt(fed, tmp_path)
    again, _ = attempt(fed, tmp_path)
    assert first is not None and again is not None
    assert (first.rounds, again.rounds) == (5, 5)


def test_checkpoints_do_not_change_the_trained_weights(tmp_path: Path) -> None:
    for every in (1, 4):
        fed = federation(method=celu.Method(R=3, W=3, depth=3), checkpoint={"every": every})
        attempt(fed, tmp_path / str(every))
        assert_same_bits(weights_of(fed, tmp_path / str(every)), train_in_memory(fed))


def test_old_generations_are_deleted_except_those_that_may_be_needed(tmp_path: Path) -> None:
    fed = federation(method=celu.Method(R=1, depth=4), rounds=40, checkpoint={"every": 2})
    attempt(fed, tmp_path)
    for name in ("guest", "host"):
        rounds = Checkpoints(tmp_path / name).available_rounds()
        assert rounds == [0, 30, 32, 34, 36, 38, 40]


class Stopped(BaseException):
    """Stands for the end of a process."""


def run_auto(fed: Federation, folder: Path, stop: int | None = None) -> tuple[Any, list[Any], Any]:
    """Run `auto` over a slow link, to its end or until the guest emitted `stop` events.

    Returns the result, the guest's events, and the rounds of each party's checkpoints.
    """
    fed, stores = copy.deepcopy(fed), checkpoints(folder, fed)
    events: list[dict[str, Any]] = []
    taken: dict[str, list[int]] = {name: [] for name in stores}

    def emit(event: celu.Event) -> None:
        events.append({"event": event.event, **event.fields})
        if len(events) == stop:
            raise Stopped

    def recording(name: str) -> Callable[..., None]:
        save = stores[name].save
        return lambda snapshot, keep: (taken[name].append(snapshot.round), save(snapshot, keep))[1]

    for name in stores:
        stores[name].save = recording(name)  # type: ignore[method-assign]
    try:
        slow = LinkSettings(mbps=1, delay_ms=20)
        result = celu.simulate(
            fed.job, fed.guest, fed.hosts, callbacks=[emit], link=slow, speed=20, checkpoints=stores
        )
    except Stopped:
        return None, events, taken
    return result, events, taken


def auto_federation() -> Federation:
    return federation(
        rounds=200,
        hosts={"host": 64},
        method=celu.Method(auto=True),
        evaluation=celu.Evaluation(every=50, metric="auc"),
        checkpoint={"every": 10},
    )


@pytest.mark.parametrize("stop", [130, 150, 190])
def test_an_auto_run_resumes_and_its_choices_replay_it(stop: int, tmp_path: Path) -> None:
    fed = auto_federation()
    assert run_auto(fed, tmp_path, stop)[0] is None
    result, events, _ = run_auto(fed, tmp_path)
    assert result.rounds == 200
    assert events[0]["event"] == "resumed" and events[0]["round"] >= 10
    assert [c.round for c in result.choices] == sorted({c.round for c in result.choices})
    (tmp_path / "replay.toml").write_text(replay_toml(fed.job, result.choices))
    again = copy.deepcopy(fed)
    again.job = read_job(tmp_path / "replay.toml")
    assert_same_bits(train_in_memory(again), weights_of(fed, tmp_path))


def test_no_checkpoint_is_taken_while_rounds_may_be_rolled_back(tmp_path: Path) -> None:
    fed = auto_federation()
    result, _, taken = run_auto(fed, tmp_path)
    assert taken["guest"] == taken["host"] == sorted(set(taken["guest"]))
    assert taken["guest"][-1] == result.rounds
    assert 72 < taken["guest"][0] < 86  # then, every ten rounds


def test_an_auto_run_that_stops_while_rounds_may_be_rolled_back_starts_over(tmp_path: Path) -> None:
    fed = auto_federation()
    assert run_auto(fed, tmp_path, stop=20)[0] is None
    result, events, _ = run_auto(fed, tmp_path)
    assert result.rounds == 200 and events[0]["event"] == "started"


def test_checkpoint_tensors_are_readable_with_safetensors(tmp_path: Path) -> None:
    fed = CASES["depth 8"]()
    attempt(fed, tmp_path)
    files = (tmp_path / "host" / "checkpoints").glob("round-*/tensors.safetensors")
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert any(name.startswith("weights.bottom.") for name in tensors)
    assert any(name.startswith("in_flight.") for name in tensors)
    assert all(torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point())

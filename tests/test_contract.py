"""Contracts that differ in one field are refused at both parties before any tensor is sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import celu
from celu.errors import CeluError, ContractMismatch
from celu.session import guest_session, host_session
from celu.transport.link import Link
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message
from celu.transport.wire import VERSION
from federation import Federation, federation, train_over_grpc, with_validation
from noises import noisy_federation
from psi.parties import Wrapped, run_to_completion

CHOICE = {"round": 0, "W": 5, "R": 1, "depth": 1, "codec": "fp32"}
SGD = {"optimizer": celu.Optimizer(name="sgd", momentum=0.5)}
STEPS = {"optimizer": celu.Optimizer(schedule="step", step_rounds=9)}
# For each field: another value at one party, and other settings that both parties need.
DIFFERENCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "preset": ("paper", {}),
    "seed": (9, {}),
    "batch_size": (16, {}),
    "rounds": (9, {}),
    "epochs": (3, {"rounds": None, "epochs": 2}),
    "guest": ("somebody", {}),
    "hosts.host.z_width": (4, {}),
    "order.shuffle": ("blocks", {}),
    "order.block_rows": (64, {}),
    "order.window_blocks": (2, {}),
    "codec.activation": ("int8", {}),
    "codec.derivative": ("bf16", {}),
    "codec.evaluation": ("4bit", {}),
    "method.auto": (True, {}),
    "method.W.guest": (3, {}),
    "method.W.host": (3, {}),
    "method.R.guest": (2, {}),
    "method.R.host": (2, {}),
    "method.xi.guest": (30.0, {}),
    "method.xi.host": (30.0, {}),
    "method.depth": (2, {}),
    "method.sampling": ("mine:Sampling", {}),
    "method.weighting": ("none", {}),
    "method.local_step_order": ("after-update", {}),
    "choices": ([CHOICE], {}),
    "optimizer.name": ("adam", {}),
    "optimizer.lr": (0.1, {}),
    "optimizer.initial_accumulator": (0.1, {}),
    "optimizer.momentum": (0.9, SGD),
    "optimizer.embedding_lr": (0.1, {}),
    "optimizer.weight_decay": (0.1, {}),
    "optimizer.clip_norm": (1.0, {}),
    "optimizer.schedule": ("cosine", {}),
    "optimizer.warmup_rounds": (2, {}),
    "optimizer.final_factor": (0.1, {"optimizer": celu.Optimizer(schedule="linear")}),
    "optimizer.step_rounds": (3, STEPS),
    "optimizer.step_factor": (0.5, STEPS),
    "checkpoint.every": (7, {}),
    "evaluation.every": (7, {}),
    "evaluation.rows": (50, {}),
    "evaluation.metric": ("auc", {}),
    "evaluation.target": (0.1, {}),
    "evaluation.patience": (3, {}),
    "privacy.label_epsilon": (1.0, {}),
    "alignment.group": ("x25519", {}),
}
DERIVED = {"method.given"}  # the settings that `auto` may not change; has its own test


def changed(job: celu.Job, field: str, value: Any) -> celu.Job:
    """The same contract with one field changed."""
    values = job.model_dump(mode="json")
    inner, *names = values, *field.split(".")
    for name in names[:-1]:
        inner = inner[name]
    inner[names[-1]] = value
    return celu.Job.model_validate(values)


Outcomes = Mapping[str, object]


def run_sessions(
    fed: Federation,
    hosts_job: celu.Job | None = None,
    wrap: Callable[[Link], Link] = lambda link: link,
) -> Outcomes:
    """Run both sessions until they end; asserts that no tensor is sent."""
    to_host, to_guest = memory_links("guest", "host")
    events = {}

    def emit(event: celu.Event) -> None:
        events[event.event] = event

    host = host_session("host", fed.hosts["host"], hosts_job or fed.job, wrap(to_guest), emit)
    guest = guest_session("guest", fed.guest, fed.job, {"host": to_host}, emit)
    outcomes = run_to_completion(
        {"guest": guest, "host": host}, {"guest": [to_host], "host": [to_guest]}
    )
    for link in (to_host, to_guest):
        assert link.traffic.sent.training_bytes == link.traffic.sent.evaluation_bytes == 0
    assert "started" not in events
    return outcomes


def assert_both_name(field: str, outcomes: Outcomes) -> None:
    for name, outcome in outcomes.items():
        assert isinstance(outcome, ContractMismatch), (name, outcome)
        assert f" {field}: {name} has " in str(outcome)
        assert outcome.public() == str(outcome), "the peer receives the whole message"


def test_the_tests_below_cover_every_field_of_a_contract() -> None:
    assert DIFFERENCES.keys() | DERIVED == federation().job.contract().keys()


@pytest.mark.parametrize("field", DIFFERENCES)
def test_a_field_that_differs_is_named_and_refused_at_both_parties(field: str) -> None:
    value, others = DIFFERENCES[field]
    fed = with_validation(federation(**others))
    assert_both_name(field, run_sessions(fed, changed(fed.job, field, value)))


def test_settings_that_are_fixed_under_auto_are_compared() -> None:
    fed = federation(method=celu.Method(auto=True))
    written = fed.job.model_copy(update={"method": celu.Method(auto=True, depth=1)})
    assert_both_name("method.given", run_sessions(fed, written))


@pytest.mark.parametrize(
    ("field", "noise"),
    [
        ("privacy.z_noise.clip", {"z_noise": {"clip": 2.0, "noise_multiplier": 1.0}}),
        ("privacy.dz_noise.power", {"dz_noise": {"name": "marvell", "power": 4.0}}),
    ],
)
def test_noise_that_differs_or_that_one_party_lacks_is_named(field: str, noise: Any) -> None:
    fed, other = noisy_federation(), noisy_federation(**noise)
    assert_both_name(field, run_sessions(fed, other.job))
    setting, name = field.split(".")[1:]
    values = {**noise[setting], name: 9.0}
    third = noisy_federation(**{setting: values})
    assert_both_name(field, run_sessions(other, third.job))


def test_a_rate_of_one_party_is_compared() -> None:
    fed = federation()
    optimizer = celu.Optimizer(party_lr={"host": 0.1})
    outcomes = run_sessions(fed, fed.job.model_copy(update={"optimizer": optimizer}))
    assert_both_name("optimizer.party_lr.host", outcomes)


def test_a_host_that_only_one_contract_lists_is_named_and_refused() -> None:
    fed = federation()
    hosts = {**fed.job.hosts, "third": celu.HostTerms(z_width=6)}
    outcomes = run_sessions(fed, fed.job.model_copy(update={"hosts": hosts}))
    assert_both_name("hosts.third.z_width", outcomes)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_different_rows_are_named_and_refused(part: str) -> None:
    fed = with_validation(federation())
    host, table = fed.hosts["host"], getattr(fed.hosts["host"], part)
    fewer = celu.Dataset({n: t[:-1] for n, t in table.inputs.items()}, None, table.sizes)
    named = dataclasses.replace(table, tags=np.zeros((table.num_rows, 16), np.uint8))
    for field, other in ((f"{part}_rows", fewer), (f"{part}_ids", named)):
        fed.hosts["host"] = dataclasses.replace(host, **{part: other})
        assert_both_name(field, run_sessions(fed))


@pytest.mark.parametrize("value", [VERSION - 1, VERSION + 1, str(VERSION), None])
def test_another_protocol_version_is_named_and_refused(value: Any) -> None:
    def change(message: Message) -> Message:
        if message.kind is not Kind.HELLO:
            return message
        body = message.body or {}
        contract = {**body["contract"], "protocol": value}
        return dataclasses.replace(message, body={**body, "contract": contract})

    # Both parties receive a changed HELLO.
    assert_both_name(
        "protocol", run_sessions(federation(), wrap=lambda link: Wrapped(link, change, change))
    )


def test_a_field_that_only_one_party_has_is_named_and_refused() -> None:
    for field, change in (
        ("novelty", lambda contract: {**contract, "novelty": 1}),
        ("seed", lambda contract: {k: v for k, v in contract.items() if k != "seed"}),
    ):

        def altered(message: Message, change: Any = change) -> Message:
            if message.kind is not Kind.HELLO:
                return message
            body = message.body or {}
            return dataclasses.replace(message, body={**body, "contract": change(body["contract"])})

        outcomes = run_sessions(
            federation(),
            wrap=lambda link, altered=altered: Wrapped(link, altered, altered),  # type: ignore[misc]
        )
        assert_both_name(field, outcomes)


def test_a_field_that_differs_is_named_and_refused_over_grpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = changed(federation().job, "optimizer.lr", 0.1)
    outcomes: dict[str, CeluError] = {}

    async def hosts(name: str, host: celu.Host, job: celu.Job, *more: Any) -> None:
        try:
            await host_session(name, host, other, *more)
        except CeluError as error:
            outcomes[name] = error

    monkeypatch.setattr("federation.host_session", hosts)
    with pytest.raises(ContractMismatch) as refused:
        train_over_grpc(federation(), tmp_path)
    assert_both_name("optimizer.lr", {"guest": refused.value, **outcomes})

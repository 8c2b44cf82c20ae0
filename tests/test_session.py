"""Handshake, evaluation and failure, between parties in one process."""

import dataclasses
import math

import pytest
import torch

import celu
from celu.data.order import BatchOrder
from celu.errors import (
    ConfigError,
    DataError,
    NonFiniteError,
    PeerFailed,
    ShapeError,
)
from celu.events import ignore
from celu.session import guest_session, host_session
from celu.transport.memory import memory_links, run_together
from celu.transport.message import Kind, Message
from federation import BATCH, ROWS, Federation, federation, with_validation


def run(fed: Federation) -> celu.Result:
    to_host, to_guest = memory_links("guest", "host")
    programs = {
        "host": host_session("host", fed.hosts["host"], fed.job, to_guest, ignore),
        "guest": guest_session("guest", fed.guest, fed.job, {"host": to_host}, ignore),
    }
    return run_together(programs, [to_host])["guest"]


def test_training_stops_at_the_target_at_all_parties() -> None:
    evaluation = celu.Evaluation(every=2, metric="loss", target=100.0)
    result = run(federation(evaluation=evaluation))
    assert result.rounds == 2


def test_a_target_metric_that_the_loss_does_not_have_is_refused_before_training() -> None:
    evaluation = celu.Evaluation(every=2, metric="auc", target=0.9)
    with pytest.raises(ConfigError, match=r"loss, rmse, mae, r2\), got auc"):
        run(federation(loss="regression", evaluation=evaluation))


@pytest.mark.parametrize("validates", [False, True])
def test_a_run_without_test_rows_is_refused_before_training(validates: bool) -> None:
    fed = with_validation(federation()) if validates else federation()
    empty = celu.Dataset({name: t[:0] for name, t in fed.hosts["host"].test.inputs.items()})
    labels = fed.guest.test.labels
    assert labels is not None
    guest = dataclasses.replace(fed.guest, test=celu.Dataset(empty.inputs, labels[:0]))
    hosts = {"host": dataclasses.replace(fed.hosts["host"], test=empty)}
    events: list[celu.Event] = []
    with pytest.raises(DataError, match=r"at least one test row, got none; set split\.test"):
        celu.simulate(fed.job, guest, hosts, callbacks=[events.append])
    assert not events


def test_held_out_metrics_are_exact_and_their_bytes_are_counted_separately() -> None:
    fed = federation(rounds=10)
    result = run(fed)
    guest, host = fed.guest, fed.hosts["host"]
    assert guest.bottom is not None and guest.test.labels is not None
    with torch.no_grad():
        z = guest.bottom(**guest.test.inputs), host.bottom(**host.test.inputs)
        scores = guest.top(*z).reshape(-1)
    from sklearn.metrics import log_loss, roc_auc_score

    last = result.evaluations[-1]
    assert last["round"] == 10
    assert last["auc"] == pytest.approx(roc_auc_score(guest.test.labels, scores), abs=1e-12)
    assert last["loss"] == pytest.approx(
        log_loss(guest.test.labels, scores.double().sigmoid()), abs=1e-6
    )
    num_evaluations, rows, width = 2, 192, 6
    payload = num_evaluations * rows * width * 4
    assert payload < last["evaluation_bytes"] < payload * 1.2
    assert last["bytes_received"] == last["bytes_sent"]


def test_the_last_incomplete_part_of_the_test_rows_is_scored_too() -> None:
    evaluation = celu.Evaluation(every=5, metric="loss", rows=50)
    fed = federation(rounds=5, evaluation=evaluation)
    assert math.isfinite(run(fed).evaluations[-1]["loss"])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_from_a_bottom_is_refused_with_the_round_and_no_step_is_applied(bad: float) -> None:
    fed = federation(method=celu.Method(R=1))
    host = fed.hosts["host"]
    poisoned = {n: t.clone() for n, t in host.train.inputs.items()}
    train = celu.Dataset(poisoned, None, host.train.sizes)
    train.inputs["numbers"][:, 0] = bad  # a dataset refuses it, so it is as if the bottom did it
    fed.hosts["host"] = dataclasses.replace(host, train=train)
    before = fed.weights()
    with pytest.raises(NonFiniteError, match="ACTIVATION of round 0"):
        run(fed)
    after = fed.weights()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_loss_of_nan_is_refused_before_anything_is_sent_or_applied() -> None:
    fed = federation(loss="regression")
    assert fed.guest.train.labels is not None
    fed.guest.train.labels.fill_(math.nan)
    before = fed.weights()
    with pytest.raises(NonFiniteError, match="the loss of round 0"):
        run(fed)
    after = fed.weights()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("codec", "tensor", "message"),
    [
        ("fp32", torch.zeros(32, 7), r"float32 of at most \[32, 6\].* got .*float32 of \[32, 7\]"),
        ("fp32", torch.zeros(33, 6), r"at most \[32, 6\].*\[33, 6\]"),
        ("fp32", torch.zeros(31, 6), "ACTIVATION of round 0 from host: expected 32 rows, got 31"),
        ("bf16", torch.zeros(32, 6), r"uint8 of at most \[384, 1\].* got .*float32 of \[32, 6\]"),
        ("bf16", torch.zeros(385, 1, dtype=torch.uint8), r"at most \[384, 1\].*\[385, 1\]"),
        ("bf16", torch.zeros(383, 1, dtype=torch.uint8), "round 0 from host: expected 384 bytes"),
    ],
)
def test_a_peer_that_sends_another_shape_is_refused(
    codec: str, tensor: torch.Tensor, message: str
) -> None:
    fed = federation(codec=codec)
    to_host, to_guest = memory_links("guest", "host")

    async def rogue() -> None:
        hello = await to_guest.receive()
        assert hello.body is not None
        await to_guest.send(Message(Kind.HELLO, body={**hello.body, "name": "host"}))
        await to_guest.receive()
        await to_guest.send(Message(Kind.READY))
        digest = fed.guest.train.take(BatchOrder(1, ROWS, BATCH).rows(0)).row_digest
        await to_guest.send(Message(Kind.ACTIVATION, 0, tensor=tensor, row_digest=digest))
        await to_guest.receive()

    guest = guest_session("guest", fed.guest, fed.job, {"host": to_host}, ignore)
    with pytest.raises(ShapeError, match=message):
        run_together({"guest": guest, "host": rogue()}, [to_host])  # type: ignore[dict-item]


def test_a_peer_receives_only_the_public_part_of_an_error() -> None:
    fed = federation()
    to_host, to_guest = memory_links("guest", "host")
    small = celu.Dataset({}, torch.tensor([0.0, 1, 0, 1, 0]))
    guest = dataclasses.replace(fed.guest, train=small)
    session = guest_session("guest", guest, fed.job, {"host": to_host}, ignore)
    with pytest.raises(DataError, match="got 5"):
        session.send(None)

    async def peer() -> None:
        await to_guest.receive()

    with pytest.raises(PeerFailed, match=r"guest stopped: DataError$"):
        peer().send(None)


def test_a_job_without_hosts_trains_the_guest_alone() -> None:
    fed = federation(hosts={}, rounds=6)
    result = celu.simulate(fed.job, fed.guest, {})
    assert result.rounds == 6
    assert result.traffic == {
        "bytes_sent": 0,
        "bytes_received": 0,
        "evaluation_bytes": 0,
        "control_bytes": 0,
    }


def test_a_guest_with_labels_only_and_no_hosts_is_refused() -> None:
    fed = federation()
    guest = dataclasses.replace(fed.guest, bottom=None)
    with pytest.raises(DataError, match="got neither"):
        celu.simulate(fed.job.model_copy(update={"hosts": {}}), guest, {})


def test_simulate_names_missing_hosts() -> None:
    fed = federation()
    with pytest.raises(ConfigError, match="host"):
        celu.simulate(fed.job, fed.guest, {})


def test_host_callbacks_are_called_with_the_events_of_their_host() -> None:
    fed = federation(rounds=4, method=celu.Method(W=2, R=2))
    events: list[celu.Event] = []
    callbacks = {"host": [events.append]}
    celu.simulate(fed.job, fed.guest, fed.hosts, host_callbacks=callbacks)
    rounds = [event.fields for event in events if event.event == "round"]
    assert [fields["round"] for fields in rounds] == [1, 2, 3, 4]
    assert "similarity_quantiles" in rounds[-1] and "loss" not in rounds[-1]

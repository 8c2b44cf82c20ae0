"""Training with codecs: equal bits over any transport; a party caches what it sent exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import celu
from celu.engine.coding import Coding
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.errors import ConfigError, NonFiniteError, ShapeError
from celu.transport.message import Kind, Message
from federation import assert_same_bits, federation, train_in_memory, train_over_grpc

METHOD = celu.Method(W=4, R=3, depth=2)
MIXED = {"activation": "4bit", "derivative": "int8", "evaluation": "bf16+zstd"}


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.mark.parametrize("codec", ["bf16", "fp16", "int8", "4bit", MIXED], ids=str)
def test_a_codec_gives_equal_bits_over_grpc_and_in_memory_and_is_lossy(
    codec: object, keys: Path
) -> None:
    fed = federation(method=METHOD, codec=codec, hosts={"a": 6, "b": 16})
    weights = train_in_memory(fed)
    assert_same_bits(weights, train_over_grpc(fed, keys))
    exact = train_in_memory(federation(method=METHOD, hosts={"a": 6, "b": 16}))
    assert any(not torch.equal(weights[name], exact[name]) for name in exact)
    max_error = max(float((weights[name] - exact[name]).abs().max()) for name in exact)
    assert max_error < 1.0


def test_rounding_depends_on_seed_and_round_only() -> None:
    coding = [Coding(federation(codec="4bit", seed=seed).job, "host") for seed in (1, 2)]
    z = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    a, b = (c.pack(Message(Kind.ACTIVATION, 3, tensor=z)).tensor for c in coding)
    again = coding[0].pack(Message(Kind.ACTIVATION, 3, tensor=z)).tensor
    other_round = coding[0].pack(Message(Kind.ACTIVATION, 4, tensor=z)).tensor
    assert a is not None and b is not None and again is not None and other_round is not None
    assert torch.equal(a, again)
    assert not torch.equal(a, b) and not torch.equal(a, other_round)


def test_a_party_caches_what_it_sent_exactly_and_what_it_received_as_decoded() -> None:
    fed = federation(codec="4bit", method=celu.Method(R=3))
    host = HostTrainer("host", fed.hosts["host"], fed.job)
    guest = GuestTrainer("guest", fed.guest, fed.job)
    with torch.no_grad():
        exact = fed.hosts["host"].bottom(**host.loader.batch(0).inputs)
    activation = host.compute_activation(0)
    _, (derivative,) = guest.compute_derivatives(0, [activation])
    host.update(0, derivative)
    coding = Coding(fed.job, "host")
    (at_guest,), (at_host,) = guest.workset.table, host.workset.table
    assert torch.equal(at_host.z[0], exact)
    assert torch.equal(at_guest.z[0], coding.unpack(activation, 32))
    assert torch.equal(at_host.dz[0], coding.unpack(derivative, 32))
    assert not torch.equal(at_guest.z[0], at_host.z[0])
    assert not torch.equal(at_guest.dz[0], at_host.dz[0])
    assert activation.tensor is not None
    assert activation.tensor.numel() == 4 * 6 + 32 * (4 + 4)


def test_a_codec_reduces_the_bytes_of_training_and_evaluation() -> None:
    traffic = {}
    for codec in ("fp32", "int8"):
        fed = federation(codec=codec, hosts={"host": 64})
        traffic[codec] = celu.simulate(fed.job, fed.guest, fed.hosts).traffic
    for what in ("bytes_sent", "bytes_received", "evaluation_bytes"):
        assert 2.8 < traffic["fp32"][what] / traffic["int8"][what] < 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_inf_are_refused_before_encoding_and_after_decoding(bad: float) -> None:
    coding = Coding(federation(codec="int8").job, "host")
    z = torch.zeros(32, 6)
    z[3, 2] = bad
    with pytest.raises(NonFiniteError, match="ACTIVATION of round 7"):
        coding.pack(Message(Kind.ACTIVATION, 7, tensor=z))
    packed = coding.pack(Message(Kind.ACTIVATION, 7, tensor=torch.ones(32, 6)))
    assert packed.tensor is not None
    packed.tensor[:4, 0] = torch.tensor([bad]).view(torch.uint8)
    with pytest.raises(NonFiniteError, match="round 7"):
        coding.unpack(packed, 32)


def test_a_message_with_another_number_of_rows_is_refused() -> None:
    coding = Coding(federation(codec="int8").job, "host")
    packed = coding.pack(Message(Kind.DERIVATIVE, 2, tensor=torch.ones(31, 6)))
    with pytest.raises(ShapeError, match="DERIVATIVE of round 2: expected 448 bytes"):
        coding.unpack(packed, 32)


def test_an_unknown_codec_is_refused_before_training_starts() -> None:
    fed = federation(codec="int9")
    with pytest.raises(ConfigError, match="codec: expected one of"):
        celu.simulate(fed.job, fed.guest, fed.hosts)

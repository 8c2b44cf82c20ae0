"""The messages of a prediction: what crosses the link, and peers that break the protocol."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from celu.config.serving import Serving
from celu.data.tags import make_tags
from celu.errors import (
    AlignmentError,
    CeluError,
    ContractMismatch,
    NonFiniteError,
    PeerFailed,
    ProtocolError,
    ShapeError,
)
from celu.events import ignore
from celu.serving.model import Model
from celu.serving.predict_session import Scored, predict_guest, predict_host
from celu.serving.rows import ChunkPlan, DatasetRows, RowSource, StoreRows
from celu.transport.memory import MemoryLink, memory_links, run_together
from celu.transport.message import Kind, Message
from celu.transport.wire import encode
from federation import ROWS, Federation, federation
from predictions import SEED, align, for_store, store_of, train

CHUNK = 64
SERVING = Serving(hosts=["host"], chunk_rows=CHUNK)


class Sink:
    """Scores in a list; begins with the chunk `first`."""

    next_chunk = 0

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.scored: list[Scored] = []
        self.work: Mapping[str, Any] = {}

    def begin(self, work: Mapping[str, Any], plan: ChunkPlan) -> int:
        self.work = work
        return self.first

    def add(self, scored: Scored) -> None:
        self.scored.append(scored)


@pytest.fixture(scope="module")
def fed() -> Federation:
    return federation(rounds=15)


@pytest.fixture(scope="module")
def parts(fed: Federation) -> dict[str, Model]:
    return train(fed)[0]


def sources(fed: Federation, **chunk_rows: int) -> dict[str, RowSource]:
    ids = pa.array(map(str, range(ROWS)))
    tests = {"guest": fed.guest.test, "host": fed.hosts["host"].test}
    return {
        name: DatasetRows({"test": rows}, chunk_rows.get(name, CHUNK), ids={"test": ids})
        for name, rows in tests.items()
    }


def errors_of(programs: dict[str, Coroutine[Any, Any, None]]) -> dict[str, CeluError]:
    """Run the programs until all end; the error of each that fails."""
    failed: dict[str, CeluError] = {}
    running = dict(programs)
    for _ in range(10_000):
        for name, program in list(running.items()):
            try:
                program.send(None)
            except StopIteration:
                del running[name]
            except CeluError as error:
                failed[name] = error
                del running[name]
        if not running:
            return failed
    raise AssertionError(f"{sorted(running)} did not end")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"codec": "bf16"}, "codec"),
        ({"chunk_rows": 32}, "chunk_rows"),
        ({"asks": "tags"}, "asks"),
        ({"mode": "pushed"}, "mode"),
        ({"hosts": ["host", "other"]}, "hosts"),
    ],
)
def test_another_serving_contract_is_refused_by_name_at_both_sides(
    fed: Federation, parts: dict[str, Model], changed: dict[str, Any], field: str
) -> None:
    to_host, to_guest = memory_links("guest", "host")
    rows = sources(fed)
    theirs = SERVING.model_copy(update=changed)
    sink = Sink()
    failed = errors_of(
        {
            "guest": predict_guest(
                "guest", parts["guest"], rows["guest"], SERVING, {"host": to_host}, sink, ignore
            ),
            "host": predict_host("host", parts["host"], rows["host"], theirs, to_guest, ignore),
        }
    )
    for name in ("guest", "host"):
        assert isinstance(failed[name], ContractMismatch | PeerFailed)
        assert f"{field}: " in str(failed[name])
    assert "serving.toml" in str(failed["guest"]) and not sink.scored


def test_a_party_that_runs_another_command_is_named(
    fed: Federation, parts: dict[str, Model]
) -> None:
    to_host, to_guest = memory_links("guest", "host")
    guest = predict_guest(
        "guest", parts["guest"], sources(fed)["guest"], SERVING, {"host": to_host}, Sink(), ignore
    )

    async def trains() -> None:
        body = {"name": "host", "purpose": "run", "contract": {}}
        await to_guest.send(Message(Kind.HELLO, body=body))

    failed = errors_of({"host": trains(), "guest": guest})
    assert "guest runs `celu predict`, host runs `celu run`" in str(failed["guest"])


def chunk(number: int, rows: RowSource, **fields: Any) -> Message:
    batch = next(rows.chunks(number, number + 1)).batch
    return replace(
        Message(
            Kind.SCORING_ACTIVATION,
            number,
            tensor=torch.zeros(len(batch.tags), 6),
            row_digest=batch.row_digest,
        ),
        **fields,
    )


@pytest.mark.parametrize(
    ("codec", "fields", "error", "message"),
    [
        ("fp32", {"row_digest": b"x" * 16}, AlignmentError, "SCORING_ACTIVATION of chunk 0"),
        ("fp32", {"tensor": torch.zeros(CHUNK, 7)}, ShapeError, r"\[64, 6\].*\[64, 7\]"),
        ("fp32", {"tensor": torch.zeros(CHUNK + 1, 6)}, ShapeError, r"at most \[64, 6\]"),
        ("fp32", {"tensor": torch.zeros(CHUNK - 1, 6)}, ShapeError, "expected 64 rows, got 63"),
        ("fp32", {"tensor": torch.zeros(CHUNK, 6).double()}, ShapeError, "float64"),
        ("fp32", {"round": 1}, ProtocolError, "expected SCORING_ACTIVATION of chunk 0"),
        ("fp32", {"kind": Kind.TEST_ACTIVATION}, ProtocolError, "TEST_ACTIVATION: not expected"),
        ("bf16", {"tensor": torch.zeros(7, 1, dtype=torch.uint8)}, ShapeError, "768 bytes"),
        (
            "bf16",
            {"tensor": torch.full((768, 1), 255, dtype=torch.uint8)},
            NonFiniteError,
            "SCORING_ACTIVATION of chunk 0 from host holds NaN",
        ),
    ],
)
def test_a_host_that_sends_anything_else_is_refused(
    fed: Federation,
    parts: dict[str, Model],
    codec: str,
    fields: dict[str, Any],
    error: type[CeluError],
    message: str,
) -> None:
    to_host, to_guest = memory_links("guest", "host")
    rows, sink = sources(fed)["guest"], Sink()
    serving = SERVING.model_copy(update={"codec": codec})

    async def rogue() -> None:
        hello = await to_guest.receive()
        assert hello.body is not None
        await to_guest.send(Message(Kind.HELLO, body={**hello.body, "name": "host"}))
        assert (await to_guest.receive()).body == {"chunk": 0}
        to_guest._outgoing.queue.append((chunk(0, rows, **fields), 0.0, 0.0))

    guest = predict_guest("guest", parts["guest"], rows, serving, {"host": to_host}, sink, ignore)
    failed = errors_of({"guest": guest, "host": rogue()})
    assert type(failed["guest"]) is error
    with pytest.raises(error, match=message):
        raise failed["guest"]
    assert not sink.scored


@pytest.mark.parametrize("token", [None, 5, "ab", "g" * 64, ["a"]])
def test_a_host_with_an_invalid_token_is_refused(
    fed: Federation, parts: dict[str, Model], token: Any
) -> None:
    to_host, to_guest = memory_links("guest", "host")

    async def rogue() -> None:
        hello = await to_guest.receive()
        assert hello.body is not None
        await to_guest.send(Message(Kind.HELLO, body={**hello.body, "name": "host", "rows": token}))

    guest = predict_guest(
        "guest", parts["guest"], sources(fed)["guest"], SERVING, {"host": to_host}, Sink(), ignore
    )
    failed = errors_of({"guest": guest, "host": rogue()})
    with pytest.raises(ProtocolError, match="rows: expected 64 hexadecimal digits"):
        raise failed["guest"]


@pytest.mark.parametrize("body", [None, {}, {"chunk": -1}, {"chunk": 4}, {"chunk": "0"},
                                  {"chunk": True}, {"chunk": 1.0}, {"chunk": 2**70}])  # fmt: skip
def test_a_guest_that_asks_for_an_impossible_chunk_is_refused(
    fed: Federation, parts: dict[str, Model], body: Any
) -> None:
    to_host, to_guest = memory_links("guest", "host")

    async def rogue() -> None:
        hello = await to_host.receive()
        assert hello.body is not None
        await to_host.send(Message(Kind.HELLO, body={**hello.body, "name": "guest"}))
        await to_host.send(Message(Kind.READY, body=body))

    host = predict_host("host", parts["host"], sources(fed)["host"], SERVING, to_guest, ignore)
    failed = errors_of({"host": host, "guest": rogue()})
    with pytest.raises(ProtocolError, match="READY of guest: expected a chunk from 0 to 3"):
        raise failed["host"]


@pytest.mark.parametrize("first", range(4))
def test_the_host_sends_only_the_chunks_that_the_guest_has_no_scores_of(
    fed: Federation, parts: dict[str, Model], first: int
) -> None:
    to_host, to_guest = memory_links("guest", "host")
    rows, sink = sources(fed), Sink(first)
    run_together(
        {
            "guest": predict_guest(
                "guest", parts["guest"], rows["guest"], SERVING, {"host": to_host}, sink, ignore
            ),
            "host": predict_host("host", parts["host"], rows["host"], SERVING, to_guest, ignore),
        },
        [to_host, to_guest],
    )
    assert [scored.chunk for scored in sink.scored] == list(range(first, 3))
    sent = to_guest.traffic.sent
    assert sent.scoring_bytes == (ROWS - first * CHUNK) * 6 * 4 + (3 - first) * 76
    assert sent.training_bytes == sent.evaluation_bytes == 0
    assert sink.work["rows"] == {"guest": rows["guest"].token, "host": rows["host"].token}


class Recorder:
    """A link that records the bytes of everything that is sent."""

    def __init__(self, link: MemoryLink, wire: bytearray) -> None:
        self._link = link
        self._wire = wire
        self.peer, self.traffic = link.peer, link.traffic
        self.allow, self.receive, self.close = link.allow, link.receive, link.close

    async def send(self, message: Message) -> None:
        for piece in encode(message, 0):
            self._wire += piece
        await self._link.send(message)


def test_no_id_and_no_tag_crosses_the_link(tmp_path: Path, parts: dict[str, Model]) -> None:
    ids = [f"person-{n}" for n in range(150)]
    stores = {
        "guest": store_of(tmp_path / "guest", ids[:120]),
        "host": store_of(tmp_path / "host", ids[20:]),
    }
    alignments = align(tmp_path, stores)
    models = {name: for_store(parts[name], store) for name, store in stores.items()}
    rows = {name: StoreRows(stores[name], models[name], alignments[name], CHUNK) for name in stores}
    wire = bytearray()
    to_host, to_guest = memory_links("guest", "host")
    links = {"host": Recorder(to_host, wire)}
    sink = Sink()
    run_together(
        {
            "guest": predict_guest(
                "guest", models["guest"], rows["guest"], SERVING, links, sink, ignore
            ),
            "host": predict_host(
                "host", models["host"], rows["host"], SERVING, Recorder(to_guest, wire), ignore
            ),
        },
        [to_host, to_guest],
    )
    assert sum(len(scored.ids) for scored in sink.scored) == 100
    assert len(wire) > 100 * 6 * 4
    for name, tag in zip(ids, make_tags(ids, SEED), strict=True):
        assert name.encode() not in wire
        assert tag.tobytes() not in wire and tag.tobytes().hex().encode() not in wire
    assert b"person" not in wire and str(tmp_path).encode() not in wire


def test_a_model_that_returns_nan_is_refused_before_anything_is_sent(
    fed: Federation, parts: dict[str, Model]
) -> None:
    to_host, to_guest = memory_links("guest", "host")
    rows, sink = sources(fed), Sink()

    class Broken(torch.nn.Module):
        def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return torch.full((len(numbers), 6), torch.nan)

    failed = errors_of(
        {
            "guest": predict_guest(
                "guest", parts["guest"], rows["guest"], SERVING, {"host": to_host}, sink, ignore
            ),
            "host": predict_host(
                "host", replace(parts["host"], bottom=Broken()), rows["host"], SERVING, to_guest,
                ignore,
            ),
        }
    )  # fmt: skip
    assert isinstance(failed["host"], NonFiniteError) and isinstance(failed["guest"], PeerFailed)
    assert not sink.scored
    said = str(failed["host"])
    assert "SCORING_ACTIVATION of chunk 0 holds NaN" in said and "use another model" in said
    assert "round" not in said and "learning rate" not in said  # this is no training

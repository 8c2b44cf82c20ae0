"""One party's part in a prediction: compare contracts, agree on the first chunk, score, close.

A host computes Z chunk by chunk and sends ahead, as far as the link accepts it. The guest computes
its own part and scores each chunk when all Z of it have arrived. Each is a coroutine over open
links, as a training session is. Before an error is raised, its public message is sent to the peers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from celu.config.serving import Serving
from celu.engine.coding import check_same_rows
from celu.errors import ConfigError, ModelError, ProtocolError
from celu.events import Callback, ScoringProgress
from celu.handshake import check_contract, close_session, make_hello, report_failure
from celu.serving.coding import ServingCoding
from celu.serving.model import Model
from celu.serving.rows import Chunk, ChunkPlan, RowSource, row_contract
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect
from celu.transport.wire import VERSION, is_finite, not_finite

_FILE = "serving.toml"
_REPORT_CHUNKS = 16  # between two events


class Scored(NamedTuple):
    """The scores of a chunk: [B], or [B, K] for K classes, float64 on the CPU."""

    chunk: int
    ids: Any  # an Arrow array of strings; None for rows without ids
    scores: Tensor
    is_fallback: bool


class ScoreSink(Protocol):
    """Where scores go."""

    @property
    def next_chunk(self) -> int:
        """The first chunk whose scores are not saved yet."""
        ...

    def begin(self, work: Mapping[str, Any], plan: ChunkPlan) -> int:
        """The first chunk to score: scores that were made from the same `work` are retained."""
        ...

    def add(self, scored: Scored) -> None:
        """Add the scores of the next chunk."""
        ...


def check_model(model: Model, serving: Serving, name: str) -> None:
    """Raise ConfigError unless a model is this party's part, and belongs to these parties."""
    facts = model.facts
    for what, expected, got in (
        ("party", name, facts.party),
        ("guest", serving.guest, facts.guest),
        ("hosts", sorted(serving.hosts), sorted(facts.hosts)),
    ):
        if expected != got:
            raise ConfigError(
                f"model {model.name}: {what}: expected {expected}, as in the settings, got {got}; "
                "use the part of the model that this party exported"
            )


async def predict_host(
    name: str, model: Model, rows: RowSource, serving: Serving, link: Link, emit: Callback
) -> None:
    """Send Z of all aligned rows to the guest."""
    links = {link.peer: link}
    try:
        coding = ServingCoding(serving.codec, model.facts.hosts[name], serving.chunk_rows)
        await _exchange_hellos(name, model, rows, serving, links)
        num_chunks = rows.plan.num_aligned
        first = read_first_chunk(
            link.peer, expect(await link.receive(), Kind.READY).body, num_chunks
        )
        progress = _Progress(rows.plan, num_chunks, emit)
        with closing(rows.chunks(first, num_chunks)) as chunks:
            for chunk in chunks:
                z_BD = model.activations(chunk.batch)
                digest = chunk.batch.row_digest
                message = Message(
                    Kind.SCORING_ACTIVATION, chunk.number, tensor=z_BD, row_digest=digest
                )
                await link.send(coding.pack(message))
                progress.report(chunk.number + 1)
        await close_session(links)
    except (Exception, KeyboardInterrupt) as error:
        await report_failure(links, error)
        raise


async def predict_guest(
    name: str,
    model: Model,
    rows: RowSource,
    serving: Serving,
    links: Mapping[str, Link],
    sink: ScoreSink,
    emit: Callback,
) -> None:
    """Score all aligned rows; `score_unaligned` then scores the others."""
    links = {host: links[host] for host in model.facts.hosts}  # in the order of the top model
    try:
        codings = {
            host: ServingCoding(serving.codec, width, serving.chunk_rows)
            for host, width in model.facts.hosts.items()
        }
        work = await _exchange_hellos(name, model, rows, serving, links)
        num_chunks = rows.plan.num_aligned
        first = min(sink.begin(work, rows.plan), num_chunks)
        for host, link in links.items():
            link.allow({Kind.SCORING_ACTIVATION: codings[host].spec()})
            await link.send(Message(Kind.READY, body={"chunk": first}))
        progress = _Progress(rows.plan, rows.plan.num_chunks, emit)
        with closing(rows.chunks(first, num_chunks)) as chunks:
            for chunk in chunks:
                z = []
                for host, link in links.items():
                    message = await link.receive()
                    expect(message, Kind.SCORING_ACTIVATION, chunk.number)
                    check_same_rows(message, chunk.batch)
                    z.append(codings[host].unpack(message, len(chunk.batch.tags)))
                sink.add(_score(model, chunk, z, is_fallback=False))
                progress.report(chunk.number + 1)
        await close_session(links)
    except (Exception, KeyboardInterrupt) as error:
        await report_failure(links, error)
        raise


def score_unaligned(model: Model, rows: RowSource, sink: ScoreSink, emit: Callback) -> None:
    """Score the rows of the guest that are not aligned, with the mean Z of each host.

    It follows `predict_guest`. The hosts take no part.
    """
    progress = _Progress(rows.plan, rows.plan.num_chunks, emit)
    first = max(sink.next_chunk, rows.plan.num_aligned)
    with closing(rows.chunks(first, rows.plan.num_chunks)) as chunks:
        for chunk in chunks:
            mean_z = model.fallback_z(len(chunk.batch.tags))
            z = [mean_z[host] for host in model.facts.hosts]
            sink.add(_score(model, chunk, z, is_fallback=True))
            progress.report(chunk.number + 1)


def _score(model: Model, chunk: Chunk, z: list[Tensor], *, is_fallback: bool) -> Scored:
    scores = model.scores(chunk.batch, z)
    rows = len(chunk.batch.tags)
    dimensions = 2 if model.facts.output == "multiclass" else 1
    if scores.dim() != dimensions or scores.shape[0] != rows:
        shape = f"[{rows}]" if dimensions == 1 else f"[{rows}, classes]"
        raise ModelError(
            f"{model.facts.party}: expected {model.facts.output} scores of {shape} from the top "
            f"model, got {list(scores.shape)}"
        )
    if not is_finite(scores):
        raise not_finite(f"the score of a row of chunk {chunk.number}")
    return Scored(chunk.number, chunk.ids, scores, is_fallback)


async def _exchange_hellos(
    name: str, model: Model, rows: RowSource, serving: Serving, links: Mapping[str, Link]
) -> dict[str, Any]:
    """Compare contracts; returns what the scores depend on, to resume only the same work.

    Raises ContractMismatch, which names the fields, for a peer with another contract.
    """
    contract = {
        "protocol": VERSION,
        **serving.contract(),
        "model": model.name,
        **row_contract(rows),
    }
    hello = make_hello(name, "predict", contract, rows=rows.token)
    for link in links.values():
        await link.send(hello)
    tokens = {name: rows.token}
    for link in links.values():
        body = check_contract(name, hello, link.peer, await link.receive(), _FILE)
        tokens[link.peer] = read_token(link.peer, body)
    return {"contract": contract, "rows": tokens}


def read_token(peer: str, body: Mapping[str, Any]) -> str:
    """What identifies a peer's rows, from its HELLO; raises ProtocolError."""
    token = body.get("rows")
    if not isinstance(token, str) or not re.fullmatch(r"[0-9a-f]{64}", token):
        raise ProtocolError(f"HELLO of {peer}: rows: expected 64 hexadecimal digits")
    return token


def read_first_chunk(peer: str, body: Mapping[str, Any] | None, num_chunks: int) -> int:
    """The chunk that a guest resumes from, from its READY; raises ProtocolError."""
    first = (body or {}).get("chunk")
    if not isinstance(first, int) or isinstance(first, bool) or not 0 <= first <= num_chunks:
        raise ProtocolError(f"READY of {peer}: expected a chunk from 0 to {num_chunks}")
    return first


class _Progress:
    """Emits an event now and then, and after the last chunk."""

    def __init__(self, plan: ChunkPlan, num_chunks: int, emit: Callback) -> None:
        self._plan = plan
        self._num_chunks = num_chunks
        self._emit = emit
        self._total = plan.rows(0, num_chunks)

    def report(self, done: int) -> None:
        """`done` chunks are done."""
        if done % _REPORT_CHUNKS == 0 or done == self._num_chunks:
            self._emit(ScoringProgress(done=self._plan.rows(0, done), total=self._total))

"""The targets of fuzzing: everything in celu that reads a peer's messages, with valid messages.

A target's `state` is everything that its reader could change. It must not change when a message is
refused. After a message is accepted, `reset` restores it for the next message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import celu
from celu.checkpoint.agreement import Agreement, Inventory
from celu.codecs.registry import CODECS, ZSTD
from celu.config.serving import Serving
from celu.data.order import BatchOrder
from celu.doctor import diagnosis, probes
from celu.doctor.measurement import MAX_WALL_S, Direction, Measurement, number, read_measurement
from celu.engine.coding import Coding, check_same_rows
from celu.engine.cost_model import Costs
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.engine.outcome import Outcome, Timings
from celu.engine.plan import HostPlan, Stage
from celu.engine.schedule import Schedule, Segment
from celu.engine.state import TrainerState
from celu.handshake import check_contract, make_hello
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from celu.psi import exchange, protocol, selection
from celu.psi.group import GROUPS
from celu.psi.state import VALUE_BYTES, ExchangeState
from celu.psi.workers import Workers
from celu.serving import predict_session
from celu.serving.announcement import HostModels, read_wanted, wanted_message
from celu.serving.coding import ServingCoding
from celu.serving.host_link import GuestParts
from celu.serving.pushing import HostPush
from celu.serving.row_index import ServedRows
from celu.transport.ask import MAX_ROW, MAX_SLOT, Ask, Refusal, ask_spec
from celu.transport.asker import Asker, Call
from celu.transport.delivery import ConnectionProtocol, Delivery
from celu.transport.link import run_blocking
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message, TensorSpec, expect, peer_failure, require_rows
from celu.transport.stream import StreamLink
from celu.transport.stripes import Stripe
from celu.transport.wire import encode
from stores import write_store

ROWS, WIDTH = 8, 3
ROUND = 4
Specs = Mapping[Kind, TensorSpec]


def nothing() -> None:
    """The state and reset of a reader without state."""


@dataclass(frozen=True)
class Target:
    """A reader of messages. `weight`: how often it is chosen, because some are slow."""

    name: str
    messages: list[Message]
    read: Callable[[Message], object]
    specs: Specs = field(default_factory=dict)
    state: Callable[[], object] = nothing
    reset: Callable[[], object] = nothing
    weight: float = 1.0


def make_job(**fields: Any) -> celu.Job:
    terms = {"host": celu.HostTerms(z_width=WIDTH)}
    return celu.Job(**{"rounds": 100, "batch_size": ROWS, "hosts": terms, **fields})


@contextmanager
def open_targets(folder: Path) -> Iterator[list[Target]]:
    """All targets; alignments store their progress in `folder`."""
    with ExitStack() as stack:
        yield [
            *codecs(),
            host_update(stack),
            guest_update(stack),
            greeting(),
            handshake(),
            inventory(),
            agreement(),
            verdict(),
            report(),
            failure(),
            link_diagnosis(),
            versions(),
            stripes(),
            alignment_hello(folder),
            *(alignment_elements(name) for name in GROUPS),
            alignment_selection(),
            asks(),
            answers(),
            *announcements(),
            pushed_chunks(folder),
            *scoring(),
        ]


def codecs() -> Iterator[Target]:
    """Z and dZ in every codec."""
    torch.manual_seed(1)
    for name in (name + suffix for name in CODECS for suffix in ("", ZSTD)):
        coding = Coding(make_job(codec=name), "host")
        kinds = (Kind.ACTIVATION, Kind.DERIVATIVE, Kind.TEST_ACTIVATION)
        sent = [Message(kind, ROUND, tensor=torch.randn(ROWS, WIDTH)) for kind in kinds]

        def read(message: Message, coding: Coding = coding) -> None:
            expect(message, message.kind, ROUND)
            x_BD = coding.unpack(message, ROWS)
            assert x_BD.shape == (ROWS, WIDTH) and bool(torch.isfinite(x_BD).all())

        packed = [coding.pack(message) for message in sent]
        yield Target(f"codec {name}", packed, read, coding.specs(*kinds), weight=0.4)


def _dataset() -> celu.Dataset:
    torch.manual_seed(2)
    return celu.Dataset({"numbers": torch.randn(64, 2)}, (torch.randn(64) > 0).float())


def _bits(state: TrainerState) -> object:
    weights = [t.numpy().tobytes() for m in state.modules.values() for t in m.values()]
    return weights, repr(state.optimizer), state.table[0], [e.round for e in state.table[1]]


def host_update(stack: ExitStack) -> Target:
    """dZ for a host's update: refused, or applied completely."""
    job, dataset = make_job(), _dataset()
    bottom = Tower(WIDTH, {"numbers": 2}, {}, hidden=(4,))
    host = celu.Host(bottom=bottom, train=dataset, test=dataset)
    trainer = HostTrainer("host", host, job)
    stack.callback(trainer.loader.close)
    before = trainer.state()
    digest = dataset.take(BatchOrder(job.seed, 64, ROWS).rows(0)).row_digest
    sent = Message(Kind.DERIVATIVE, 0, tensor=torch.randn(ROWS, WIDTH), row_digest=digest)

    def read(message: Message) -> None:
        trainer.compute_activation(0)
        trainer.update(0, expect(message, Kind.DERIVATIVE, 0))

    return Target(
        "host update",
        [sent],
        read,
        trainer.specs(),
        lambda: _bits(trainer.state()),
        lambda: trainer.roll_back(before),
        weight=0.2,
    )


def guest_update(stack: ExitStack) -> Target:
    """Z for a guest's derivatives and update."""
    job, dataset = make_job(), _dataset()
    top = WideDeepTop([WIDTH], 1, hidden=(4,))
    guest = celu.Guest(top=top, loss=celu.LOSSES["binary"], train=dataset, test=dataset)
    trainer = GuestTrainer("guest", guest, job)
    stack.callback(trainer.loader.close)
    before = trainer.state()
    digest = dataset.take(BatchOrder(job.seed, 64, ROWS).rows(0)).row_digest
    sent = Message(Kind.ACTIVATION, 0, tensor=torch.randn(ROWS, WIDTH), row_digest=digest)

    def read(message: Message) -> None:
        trainer.compute_derivatives(0, [expect(message, Kind.ACTIVATION, 0)])
        trainer.apply_update()

    return Target(
        "guest update",
        [sent],
        read,
        trainer.specs("host", job.tuning()),
        lambda: _bits(trainer.state()),
        lambda: trainer.roll_back(before),
        weight=0.2,
    )


def handshake() -> Target:
    """Contracts."""
    ours = make_hello("guest", "run", {"protocol": 2, **make_job().contract(), "train_rows": 64})
    theirs = Message(Kind.HELLO, body={**(ours.body or {}), "name": "host"})
    contract = repr(ours)
    return Target(
        "handshake",
        [theirs],
        lambda message: check_contract("guest", ours, "host", message),
        state=lambda: contract == repr(ours),
    )


SCHEDULE = Schedule(100, 8, 50, 16, ROWS)


def _delivery_state(delivery: Delivery) -> tuple[str | None, int, int, int]:
    sent = (delivery.enqueued, delivery.unacknowledged)
    return delivery.peer_token, delivery.received, *sent


def greeting() -> Target:
    """The greetings that open a connection."""
    current: list[Delivery] = []

    def reset() -> None:
        current[:] = [Delivery("host", "a" * 32)]
        current[0].enqueue(Message(Kind.READY))

    def read(message: Message) -> None:
        connection = ConnectionProtocol(current[0], dials=False)
        for piece in encode(message, 0):
            connection.receive_piece(piece)
        assert not connection.greeted or current[0].peer_token is not None

    reset()
    known = [None, "a" * 32]
    bodies = [{"token": "b" * 32, "knows": knows, "received": 0} for knows in known]
    return Target(
        "greeting",
        [Message(Kind.GREETING, body=body) for body in bodies],
        read,
        state=lambda: _delivery_state(current[0]),
        reset=reset,
    )


def inventory() -> Target:
    """The rounds of which a host has checkpoints."""

    def read(message: Message) -> None:
        found = Inventory.from_body("host", expect(message, Kind.HELLO).body or {})
        assert found.rounds[0] == 0 and list(found.rounds) == sorted(set(found.rounds))

    body = Inventory("c" * 32, (0, 10, 20)).to_body()
    return Target("inventory", [Message(Kind.HELLO, body=body)], read)


def agreement() -> Target:
    """The round that a guest chooses to resume from."""
    own = Inventory("c" * 32, (0, 10, 20))

    def read(message: Message) -> None:
        body = expect(message, Kind.READY).body
        agreed = Agreement.from_body("guest", body, "host", {"host": own}, 2)
        assert agreed.round in own.rounds and agreed.run == own.run

    return Target("agreement", [Message(Kind.READY, body=Agreement("c" * 32, 10).to_body())], read)


def verdict() -> Target:
    """The next stage, which a guest sends to a host."""
    job = make_job(method="auto")
    plans = [HostPlan(job, SCHEDULE)]
    here = plans[0].first().segment.stop
    tuning = make_job(method=celu.Method(W=4, R=2), codec="int8").tuning()
    stages = [
        Stage(Segment(here, 50, tuning)),
        Stage(Segment(here, 20, tuning), save="base"),
        Stage(Segment(0, 9, tuning), restore="base"),
        Stage(Segment(here, 30, tuning), save="base", restore="base", drop_savepoints=True),
    ]

    def read(message: Message) -> None:
        body = expect(message, Kind.VERDICT, here - 1).body or {}
        if body.get("stop") is not True:
            segment = plans[0].next(body).segment
            assert all(0 <= r < SCHEDULE.num_rounds for r in (segment.start, segment.stop - 1))
            assert len(segment.measured) >= 1
            Coding(job, "host", segment.tuning.codecs)

    bodies = [{"stop": False, "next": stage.to_body()} for stage in stages]
    return Target(
        "verdict",
        [Message(Kind.VERDICT, here - 1, body=body) for body in bodies],
        read,
        state=lambda: repr(vars(plans[0])),
        reset=lambda: plans.__setitem__(0, HostPlan(job, SCHEDULE)),
    )


def report() -> Target:
    """A host's timings, and the costs that a guest derives from them."""
    times = Timings(4, 1.5, 0.5, 0.25, 3, 0.1, 4096, 0.7)
    segment = Segment(0, 4, make_job(method=celu.Method(depth=3)).tuning())

    def read(message: Message) -> None:
        reported = Timings.from_body(expect(message, Kind.REPORT, 3).body, 4)
        outcome = Outcome(segment, times, (reported, times), cycle_s=2.0)
        costs = Costs.from_outcome(outcome, 1 << 22, 1 << 22).updated(outcome, 1 << 22, 1 << 22)
        assert costs.depth(1 << 22, 1 << 22) >= 1
        assert min(costs.max_steps(1 << 22, 1 << 22, 1.5)) >= 1

    return Target("report", [Message(Kind.REPORT, 3, body=times.to_body())], read)


def failure() -> Target:
    """The reason why a peer stops, which is printed."""

    def read(message: Message) -> None:
        printed = str(peer_failure("host", expect(message, Kind.FAILURE)))
        assert printed.isprintable() and len(printed) < 1100

    return Target("failure", [Message(Kind.FAILURE, body={"reason": "DataError"})], read)


def link_diagnosis() -> Target:
    """Requests for probes, and measurements."""
    direction = Direction(100.0, 90.0, 4096, 0.1, 0.2)
    measured = Measurement(0.01, 0.02, 0.001, 0.5, 0.005, direction, direction)
    arrived = Message(Kind.PROBE, 1, tensor=torch.zeros(64, 1, dtype=torch.uint8))

    def read(message: Message) -> None:
        if message.kind is Kind.PROBE:
            require_rows(expect(message, Kind.PROBE, 1), 64)
            return
        body = expect(message, Kind.FINDINGS, message.round).body or {}
        if body.get("do") == "end":
            read_measurement(body)
        elif body.get("do") == "train":
            probes.Probe.from_message(message)
        else:
            number(body, "at", 0.0, MAX_WALL_S)

    request = probes.Probe(3, "both", 16, 4096, 8192, 1.5)
    end = Message(Kind.FINDINGS, body={"do": "end", **measured.to_body()})
    at = Message(Kind.FINDINGS, 2, body={"at": 1.7e9})
    return Target("link diagnosis", [end, request.to_message(), at, arrived], read, probes.SPECS)


def versions() -> Target:
    """The versions in the HELLO of a diagnosis."""
    sent = Message(Kind.HELLO, body={"versions": diagnosis.own_versions()})

    def read(message: Message) -> None:
        diagnosis._read_versions("host", (expect(message, Kind.HELLO).body or {}).get("versions"))

    return Target("versions", [sent], read, weight=0.3)


def stripes() -> Target:
    """The metadata of a stream; here in a body, so that it is mutated in the same way."""
    metadata = dict(Stripe(3, 8, "0" * 32).metadata())

    def read(message: Message) -> None:
        body = expect(message, Kind.HELLO).body or {}
        Stripe.read({key: value for key, value in body.items() if isinstance(value, str)})

    return Target("stripes", [Message(Kind.HELLO, body=metadata)], read, weight=0.3)


def alignment_hello(folder: Path) -> Target:
    """The HELLO by which an alignment resumes or starts over."""
    workers = Workers()
    resources = protocol.AlignmentResources(folder, workers, chunk_rows=8)
    state = ExchangeState(folder / "host", "made for this", 20, 8)
    ours = make_hello("guest", "align", {"psi.chunk_rows": 8}, **protocol._resume_offer(state, 20))
    body = ours.body or {}
    theirs = Message(Kind.HELLO, body={**body, "name": "host", "nonce": "ab" * 32, "rows": 30})

    def read(message: Message) -> None:
        received = check_contract("guest", ours, "host", message)
        protocol._resume_or_start(state, body, "host", received, resources, we_are_guest=True)

    return Target(
        "alignment hello", [theirs], read, state=lambda: state.saved, reset=state.discard,
        weight=0.3,
    )  # fmt: skip


def alignment_elements(name: str) -> Target:
    """Points of the curve; bytes that are not on it are refused."""
    group = GROUPS[name]
    key = group.new_key()
    elements = group.blind(key, bytes(32), bytes(range(16)) * 4)
    blinded = torch.frombuffer(bytearray(elements), dtype=torch.uint8).reshape(4, -1)
    values = blinded[:, :VALUE_BYTES].contiguous()

    def read(message: Message) -> None:
        data = require_rows(expect(message, message.kind, 1), 4).numpy().tobytes()
        if message.kind is Kind.BLINDED:
            group.reblind(key, data)

    sent = [
        Message(Kind.BLINDED, 1, tensor=blinded),
        Message(Kind.REBLINDED, 1, tensor=values),
    ]
    specs = exchange.specs(4, group.element_bytes)
    return Target(f"alignment elements {name}", sent, read, specs, weight=0.1)


def alignment_selection() -> Target:
    """The bitmap of rows that all hosts have."""
    bits = torch.tensor([[0b10110011], [0b11000000]], dtype=torch.uint8)

    def read(message: Message) -> None:
        to_host, to_guest = memory_links("guest", "host")
        to_guest.allow({Kind.KEPT: TensorSpec(2, 1, torch.uint8)})
        run_blocking(to_host.send(message))
        to_host.close()
        assert len(run_blocking(selection.receive_selection(to_guest, 10, 5))) == 10

    specs = {Kind.KEPT: TensorSpec(2, 1, torch.uint8)}
    return Target("alignment selection", [Message(Kind.KEPT, 0, tensor=bits)], read, specs)


def asks() -> Target:
    """The asks that a guest sends to a host that serves."""

    def read(message: Message) -> None:
        ask = Ask.from_message(expect(message, Kind.ASK, ROUND))
        assert 0 <= ask.slot < MAX_SLOT and 0 < len(ask.rows) <= ROWS
        assert min(ask.rows) >= 0 and max(ask.rows) < MAX_ROW

    sent = Ask(ROUND, 3, list(range(ROWS)), time.monotonic() + 60.0).to_message()
    return Target("asks", [sent], read, {Kind.ASK: ask_spec(ROWS)})


def answers() -> Target:
    """The answers and refusals of a host, of which each caller gets its rows or none."""
    spec = TensorSpec(ROWS, WIDTH)
    asker = Asker(StreamLink("host", deadline_s=1.0), spec, max_rows=ROWS)
    calls: list[Call] = []

    def reset() -> None:
        calls[:] = [Call(0, list(range(rows)), 0.0) for rows in (ROWS - 1, 1)]
        asker._queue.clear()
        asker._in_flight.clear()
        asker._in_flight[ROUND] = list(calls)

    def read(message: Message) -> None:
        if message.kind is Kind.REFUSAL:
            asker._on_refusal(message)
        else:
            asker._on_answer(expect(message, Kind.ANSWER, message.round))
            shapes = [call.answer.shape for call in calls if call.answer is not None]
            assert shapes == [(ROWS - 1, WIDTH), (1, WIDTH)]

    reset()
    sent = [Message(Kind.ANSWER, ROUND, tensor=torch.randn(ROWS, WIDTH))]
    sent += [Message(Kind.REFUSAL, ROUND, body={"reason": reason.value}) for reason in Refusal]
    return Target(
        "answers",
        sent,
        read,
        {Kind.ANSWER: spec},
        lambda: (list(asker._in_flight), [call.answer is None for call in calls]),
        reset,
    )


def announcements() -> Iterator[Target]:
    """The models that hosts hold, and those that a guest wants."""
    name, other = "ab" * 8, "cd" * 8

    def read_host(message: Message) -> None:
        models = HostModels.from_message(expect(message, Kind.ANNOUNCE))
        assert all(len(held) == 16 for held in models.held)
        assert all(0 <= slot < MAX_SLOT for slot in (models.slots or {}).values())

    yield Target("host models", [HostModels((name, other), {name: 1}).to_message()], read_host)

    def read_guest(message: Message) -> None:
        wanted, complete = read_wanted(expect(message, Kind.ANNOUNCE))
        assert len(wanted) <= 2 and all(len(model) == 16 for model in (*wanted, *complete))

    yield Target("wanted models", [wanted_message([name, other], [other])], read_guest)


def pushed_chunks(folder: Path) -> Target:
    """Z that a host pushes: a chunk is written if it is the next one, of our rows and finite."""
    store = write_store(folder / "pushed-store", {"a": np.zeros(ROWS, np.float32)})
    rows = ServedRows(store, None)
    name = "ab" * 8
    serving = Serving(guest="guest", hosts=["host"], mode="pushed", chunk_rows=ROWS)
    host = HostPush("host", GuestParts("guest", serving, rows), lambda: {name: WIDTH}, folder)
    host.models = HostModels((name,), {name: 1})
    host._wanted = (name,)

    def reset() -> None:
        host._incoming.clear()
        host._targets.clear()
        host._files.clear()

    spec = TensorSpec(host._max_bytes(ROWS), 1, torch.uint8)
    z = torch.randn(ROWS, WIDTH).view(torch.uint8).reshape(-1, 1)
    sent = Message(Kind.SCORING_ACTIVATION, 0, 1, tensor=z, row_digest=rows.digest(0, ROWS))
    return Target(
        "pushed chunks",
        [sent],
        lambda message: host._on_chunk(expect(message, Kind.SCORING_ACTIVATION, 0, 1)),
        {Kind.SCORING_ACTIVATION: spec},
        lambda: sorted(host._files),
        reset,
    )


def scoring() -> Iterator[Target]:
    """The messages of a prediction: Z of rows to score, HELLO and READY."""
    batch = _dataset().take(slice(0, ROWS))
    for codec in ("fp32", "int8+zstd"):
        coding = ServingCoding(codec, WIDTH, ROWS)
        sent = Message(
            Kind.SCORING_ACTIVATION,
            ROUND,
            tensor=torch.randn(ROWS, WIDTH),
            row_digest=batch.row_digest,
        )

        def read(message: Message, coding: ServingCoding = coding) -> None:
            expect(message, Kind.SCORING_ACTIVATION, ROUND)
            check_same_rows(message, batch)
            x_BD = coding.unpack(message, ROWS)
            assert x_BD.shape == (ROWS, WIDTH) and bool(torch.isfinite(x_BD).all())

        specs = {Kind.SCORING_ACTIVATION: coding.spec()}
        yield Target(f"scoring {codec}", [coding.pack(sent)], read, specs, weight=0.4)

    def hello(message: Message) -> None:
        body = expect(message, Kind.HELLO).body or {}
        assert len(predict_session.read_token("host", body)) == 64

    def ready(message: Message) -> None:
        first = predict_session.read_first_chunk("guest", expect(message, Kind.READY).body, 9)
        assert 0 <= first <= 9

    yield Target("scoring hello", [Message(Kind.HELLO, body={"rows": "0a" * 32})], hello)
    yield Target("scoring ready", [Message(Kind.READY, body={"chunk": 4})], ready)

"""Federations whose guest has a twin, and all messages that a host receives in a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

import celu
from celu.config.schema import HeldOut
from celu.engine.auditing import AuditOptions
from celu.events import ignore
from celu.privacy.randomized_response import RandomizedResponse, digest_labels
from celu.privacy.secret_key import SecretKey
from celu.ranks.slices import Slices
from celu.session import guest_session, host_session
from celu.transport.memory import memory_links, run_together
from celu.transport.message import Message
from celu.transport.wire import as_sendable, encode_whole
from federation import Federation, federation, with_validation
from psi.parties import Wrapped

KEY = b"the key of the labels"


def twin_federation(
    *, validation: bool = False, epsilon: float = 1.0, key: Any = KEY, **job: Any
) -> Federation:
    """A federation with label privacy; `job` are arguments of `federation`."""
    fed = federation(**{"privacy": {"label_epsilon": epsilon}, **job})
    fed = with_validation(fed) if validation else fed
    if fed.job.privacy.z_noise is not None:
        fed.hosts = {name: replace(host, noise_key=KEY) for name, host in fed.hosts.items()}
    return with_labels(fed, lambda labels: labels, key)


def with_labels(
    fed: Federation, change: Callable[[Tensor], Tensor], key: Any = KEY, **more: Any
) -> Federation:
    """The same federation with other true labels."""

    def changed(rows: celu.Dataset) -> celu.Dataset:
        assert rows.labels is not None
        return celu.Dataset(rows.inputs, change(rows.labels), rows.sizes)

    guest = fed.guest
    other = celu.Guest(
        top=guest.top,
        bottom=guest.bottom,
        loss=guest.loss,
        train=changed(guest.train),
        test=changed(guest.test),
        validation=None if guest.validation is None else changed(guest.validation),
        metrics=guest.metrics,
        label_key=key,
        **more,
    )
    return Federation(fed.job, other, fed.hosts)


def randomized_labels(fed: Federation, part: HeldOut | Literal["train"]) -> Tensor:
    """What the twin of a guest learns from, or is evaluated on."""
    guest, epsilon = fed.guest, fed.job.privacy.label_epsilon
    rows = guest.train if part == "train" else guest.held_out(part)
    classes, key = guest.label_map.classes, SecretKey(KEY)
    assert epsilon is not None and classes is not None and rows.labels is not None
    digest = digest_labels(key, guest.labelled_rows, classes)
    return RandomizedResponse(epsilon, len(classes)).randomize(rows, part, rows.labels, key, digest)


def messages_to_hosts(
    fed: Federation,
    sent: list[Message] | None = None,
    *,
    slices: int = 1,
    audit: AuditOptions | None = None,
    received: list[Message] | None = None,
) -> tuple[list[Message], celu.Result]:
    """All messages from the guest to its hosts in a run, and the guest's result.

    The guest computes in `slices`, and all parties are audited as `audit` says. Messages to the
    guest are added to `received`. The clocks are the same in each run: with `auto`, choices depend
    on measured times.
    """
    sent, received = ([] if found is None else found for found in (sent, received))
    pairs = {name: memory_links("guest", name) for name in fed.hosts}
    programs: dict[str, Any] = {
        name: host_session(name, host, fed.job, pairs[name][1], ignore, _clock(), audit=audit)
        for name, host in fed.hosts.items()
    }
    links: dict[str, Any] = {
        name: Wrapped(pair[0], _recording(sent), _recording(received))
        for name, pair in pairs.items()
    }
    programs["guest"] = guest_session(
        "guest", fed.guest, fed.job, links, ignore, _clock(), audit=audit, ranks=Slices(slices)
    )
    result = run_together(programs, [end for pair in pairs.values() for end in pair])["guest"]
    return sent, result


def _recording(messages: list[Message]) -> Callable[[Message], Message]:
    def record(message: Message) -> Message:
        tensor = message.tensor
        copied = None if tensor is None else tensor.detach().clone()
        messages.append(replace(message, tensor=copied))
        return message

    return record


def on_the_wire(messages: Sequence[Message]) -> bytes:
    """The bytes of all messages as they are sent, but of those that depend on the connection."""
    return b"".join(encode_whole(as_sendable(message), 0, 0) for message in messages)


def _clock() -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: next(ticks) / 1000


def as_bytes(message: Message) -> tuple[Any, ...]:
    """Everything that a host sees of a message, but the random id of the run and the date."""
    tensor = message.tensor
    data = None if tensor is None else tensor.contiguous().view(torch.uint8).numpy().tobytes()
    body = {k: v for k, v in (message.body or {}).items() if k not in ("run", "trained_at")}
    return (
        message.kind,
        message.round,
        message.part,
        data,
        body,
        message.row_digest,
        message.curvature,
    )

"""What a peer may read of an error, and that nothing private is in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import celu
from celu import errors
from celu.errors import CeluError
from celu.handshake import tell
from celu.transport.link import run_blocking
from celu.transport.memory import memory_links
from celu.transport.message import Kind

SOURCE = Path(celu.__file__).parent
POISON = "/home/ana/store/train.parquet: id 4711, label 1, 10.0.0.7:7443"
# Those whose text a peer may read, because what they speak of is shared: contracts, kinds of
# message, rounds, sizes. Every other error says its kind and nothing else.
PUBLIC = {"ContractMismatch", "ProtocolError", "ShapeError", "NonFiniteError", "AlignmentError"}
UNTOLD = {"PeerRestarted"}  # a peer finds that out when it connects anew
# What a name in a message must not be made of: places, rows and what is in them.
PRIVATE = {
    "address", "certificate", "column", "file", "folder", "id", "ids", "label", "labels", "path",
    "port", "route", "row", "settings", "store", "tags", "url", "x_BD", "z_BD", "dz_BD", "environ",
}  # fmt: skip


def every_error(base: type[CeluError] = CeluError) -> Iterator[type[CeluError]]:
    yield base
    for kind in base.__subclasses__():
        yield from every_error(kind)


@pytest.mark.parametrize("kind", list(every_error()), ids=lambda kind: kind.__name__)
def test_an_error_shows_a_peer_its_kind_and_no_more_unless_it_is_public(
    kind: type[CeluError],
) -> None:
    expected = POISON if kind.__name__ in PUBLIC else kind.__name__
    assert kind(POISON).public() == expected


@pytest.mark.parametrize(
    "error",
    [
        *(kind(POISON) for kind in every_error() if kind.__name__ not in {*PUBLIC, *UNTOLD}),
        OSError(2, POISON),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_sent_when_a_party_stops_holds_nothing_private(error: Exception) -> None:
    here, there = memory_links("guest", "host")
    run_blocking(tell({"host": here}, error))
    (sent, _, _) = there._incoming.queue[0]
    assert sent.kind is Kind.FAILURE
    assert sent.body is not None and sent.body.keys() == {"reason"}
    assert not any(word in str(sent.body) for word in ("home", "4711", "label 1", "7443"))


def raised(module: Path) -> Iterator[ast.Call]:
    """Where a file makes an error that a peer may read."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in PUBLIC:
            yield node


def private_names(call: ast.Call) -> set[str]:
    """What is put into the message, by the last part of each name."""
    used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
    return used & PRIVATE


def test_no_message_that_a_peer_may_read_is_made_of_anything_private() -> None:
    calls = [(path, call) for path in sorted(SOURCE.rglob("*.py")) for call in raised(path)]
    assert len(calls) > 40, "the search finds them"
    for path, call in calls:
        assert not private_names(call), f"{path}:{call.lineno}: {ast.unparse(call)}"


@pytest.mark.parametrize(
    "text",
    [
        "AlignmentError(f'{store.path}: other rows')",
        "errors.ProtocolError(f'{peer} at {address}')",
        "ShapeError('row ' + str(ids[0]))",
    ],
)
def test_the_guard_sees_what_it_guards_against(text: str) -> None:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert private_names(call)


def test_every_error_is_one_of_the_tree() -> None:
    assert {kind.__name__ for kind in every_error()} == {
        name for name, value in vars(errors).items() if isinstance(value, type)
    }

"""The part of an error that is sent to peers contains nothing private."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import celu
from celu import errors
from celu.errors import CeluError
from celu.handshake import report_failure
from celu.transport.link import run_blocking
from celu.transport.memory import memory_links
from celu.transport.message import Kind

SOURCE = Path(celu.__file__).parent
POISON = "/home/ana/store/train.parquet: id 4711, label 1, 10.0.0.7:7443"
# Errors whose message is sent to peers, because it names only shared facts: contracts, message
# kinds, rounds, sizes. For every other error only the class name is sent.
PUBLIC = {"ContractMismatch", "ProtocolError", "ShapeError", "NonFiniteError", "AlignmentError"}
NOT_SENT = {"PeerRestarted", "RankLost"}  # the peers notice when they reconnect
# Names that must not appear in such a message: paths, addresses, rows and their content.
PRIVATE = {
    "address", "certificate", "column", "file", "folder", "id", "ids", "label", "labels", "path",
    "port", "route", "row", "settings", "store", "tags", "url", "x_BD", "z_BD", "dz_BD", "environ",
}  # fmt: skip


def every_error(base: type[CeluError] = CeluError) -> Iterator[type[CeluError]]:
    yield base
    for kind in base.__subclasses__():
        yield from every_error(kind)


@pytest.mark.parametrize("kind", list(every_error()), ids=lambda kind: kind.__name__)
def test_a_peer_sees_only_the_class_name_unless_the_error_is_public(
    kind: type[CeluError],
) -> None:
    expected = POISON if kind.__name__ in PUBLIC else kind.__name__
    assert kind(POISON).public() == expected


@pytest.mark.parametrize(
    "error",
    [
        *(kind(POISON) for kind in every_error() if kind.__name__ not in {*PUBLIC, *NOT_SENT}),
        OSError(2, POISON),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_report_contains_nothing_private(error: Exception) -> None:
    here, there = memory_links("guest", "host")
    run_blocking(report_failure({"host": here}, error))
    (sent, _, _) = there._incoming.queue[0]
    assert sent.kind is Kind.FAILURE
    assert sent.body is not None and sent.body.keys() == {"reason"}
    assert not any(word in str(sent.body) for word in ("home", "4711", "label 1", "7443"))


def public_errors(module: Path) -> Iterator[ast.Call]:
    """The places in a file that create a public error."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in PUBLIC:
            yield node


def private_names(call: ast.Call) -> set[str]:
    """The private names that the message uses."""
    used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
    return used & PRIVATE


def test_no_public_error_message_uses_a_private_name() -> None:
    calls = [(path, call) for path in sorted(SOURCE.rglob("*.py")) for call in public_errors(path)]
    assert len(calls) > 40, "the search found too few"
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
def test_the_check_for_private_names_finds_them(text: str) -> None:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert private_names(call)


def test_every_error_is_part_of_the_tree() -> None:
    assert {kind.__name__ for kind in every_error()} == {
        name for name, value in vars(errors).items() if isinstance(value, type)
    }

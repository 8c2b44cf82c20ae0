"""How a session of `celu serve` begins: the serving contract and the rows are compared."""

from __future__ import annotations

from celu.config.serving import Serving
from celu.errors import CeluError
from celu.handshake import check_contract, make_hello, report_failure
from celu.serving.row_index import ServedRows
from celu.transport.link import run_blocking
from celu.transport.stream import StreamLink
from celu.transport.wire import VERSION


def exchange_hellos(name: str, link: StreamLink, serving: Serving, rows: ServedRows) -> None:
    """Compare contracts with a peer; raises ContractMismatch, which names the fields."""
    contract = {"protocol": VERSION, **serving.contract(), **rows.contract()}
    hello = make_hello(name, "serve", contract)
    try:
        run_blocking(link.send(hello))
        check_contract(name, hello, link.peer, run_blocking(link.receive()), "serving.toml")
    except CeluError as error:
        run_blocking(report_failure({link.peer: link}, error))
        raise

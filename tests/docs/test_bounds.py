"""The bounds that SECURITY.md states are those of the code, and none of the table is unchecked."""

from __future__ import annotations

import re

from celu import http_limits, open_files, threads
from celu.checkpoint import writer
from celu.cli import app
from celu.config.party import MAX_DIRECT_STRIPES, MAX_STRIPES, PartySettings
from celu.config.serve import ServeSettings
from celu.dashboard import live
from celu.dashboard import server as dashboard
from celu.data import batch_loader, decoded_text, parquet_sizes
from celu.doctor import probes
from celu.engine import history, plan
from celu.launch import aligning, restarts
from celu.psi import answered, selection
from celu.serving import answering, http_server, model_folder
from celu.text import printable
from celu.transport import (
    carrier,
    connection,
    delivery,
    grpc_carrier,
    inner_tls,
    stream,
    stripes,
    websocket_clients,
    websocket_socket,
    wire,
)
from docs.blocks import ROOT

KIB, MIB = 1024, 1024 * 1024
SERVE = ServeSettings()
LINK = {name: PartySettings.model_fields[name].default for name in PartySettings.model_fields}
# Not a constant: a test measures each, or the words say what the bound is.
NOT_NUMBERS = {
    "open gRPC streams, with a thread each": "the sum over its peers, and 2",
    "threads": "0",
    "growth by the HTTP/2 attacks that the tests name": "64 MiB",
    "growth by headers before SETTINGS are acknowledged": "256 MiB",
    "a tensor": "its size by the contract",
    "connections": "one each, in the numbers above",
    "checkpoints given up without `--restart-from`": "`depth // every + 2`",
}


def either(gateway: int, direct: int, unit: tuple[int, int] = (1, 1), names: str = "") -> str:
    behind, without = (f" {name}" if name else "" for name in (names.split() or ["", ""]))
    return f"{gateway // unit[0]}{behind} behind a gateway, {direct // unit[1]}{without} without"


def seconds(value: float) -> str:
    return f"{value:,g} s"


def expected() -> dict[str, str]:
    """The bound of each row, from the constants that the code uses."""
    assert len(printable("x" * 5000)) == 1000
    assert grpc_carrier.MAX_INCOMING_CONNECTIONS == websocket_clients.MAX_CLIENTS
    max_rows = selection.MAX_ROWS.bit_length() - 1
    max_connections = SERVE.max_requests + http_server._SPARE_CONNECTIONS
    return {
        "open connections, authenticated or not": f"{websocket_clients.MAX_CLIENTS}",
        "unproven callers behind a gateway": f"{carrier._MAX_UNAUTHENTICATED}",
        "current and closing connections": f"{connection._MAX_CONNECTIONS}",
        "connections and requests of a dashboard": (
            f"{http_limits.BoundedHttp.max_connections} and {dashboard.MAX_CONCURRENT}"
        ),
        "connections and requests of `celu serve` (`max_requests`)": (
            f"{max_connections} and {SERVE.max_requests}"
        ),
        "gRPC streams of a link (`streams` times `connections`)": either(
            MAX_STRIPES, MAX_DIRECT_STRIPES
        ),
        "open gRPC streams": either(2 * MAX_STRIPES, 2 * MAX_DIRECT_STRIPES),
        "open gRPC streams of a connection": f"{MAX_DIRECT_STRIPES} without a gateway",
        "gRPC connections with missing streams": f"{stripes._MAX_INCOMPLETE}",
        "gRPC streams that wait for missing ones": either(MAX_STRIPES, MAX_DIRECT_STRIPES),
        "gRPC streams that wait for a thread": either(MAX_STRIPES, MAX_DIRECT_STRIPES),
        "headers of a gRPC stream": f"{grpc_carrier._MAX_HEADERS}",
        "unread PINGs": f"{websocket_socket.MAX_UNREAD_PINGS}",
        "unread bytes of a gRPC stream": either(
            grpc_carrier._GATEWAY_WINDOW_BYTES, grpc_carrier._WINDOW_BYTES, (KIB, MIB), "KiB MiB"
        ),
        "a piece of a message": f"{wire.PIECE_BYTES // MIB} MiB",
        "a JSON body": f"{wire.MAX_BODY_BYTES // KIB} KiB, {wire.MAX_BODY_LEVELS} levels",
        "messages that wait for training": f"{stream.QUEUED_MESSAGES}",
        "unacknowledged messages": (
            f"{delivery.MAX_UNACKED_MESSAGES:,} or {delivery.MAX_UNACKED_BYTES // MIB} MiB, "
            f"at least {delivery.MIN_UNACKED_MESSAGES} messages"
        ),
        "text that is quoted": "1,000 characters",
        "body and rows of a request to `celu serve` (`max_body_mb`, `max_rows`)": (
            f"{SERVE.max_body_mb} MiB and {SERVE.max_rows:,}"
        ),
        "rows of an ask": f"{answering.MAX_ASK_ROWS:,}",
        "evaluations retained": f"{history.MAX_EVALUATIONS:,} and the last",
        "events that a dashboard retains": (
            f"{live._MAX_EVENTS:,}, read {live._READ_BYTES // MIB} MiB at a time"
        ),
        "open files that a party allows itself": (
            f"{open_files._MAX_LIMIT:,}, or the system's hard limit if that is lower"
        ),
        "each step of authentication": seconds(carrier.IDENTIFY_S),
        "inner TLS handshake; missing gRPC streams": (
            f"{seconds(_same(inner_tls.HANDSHAKE_S, stripes.COMPLETE_S))} each"
        ),
        "a WebSocket that proves no name": seconds(
            inner_tls.HANDSHAKE_S + websocket_socket.CLOSE_S
        ),
        "a request to a dashboard or to `celu serve`": seconds(http_limits.REQUEST_S),
        "first connection (`connect_s`)": seconds(LINK["connect_s"]),
        "next message of a connected peer (`deadline_s`)": seconds(LINK["deadline_s"]),
        "two heartbeats (`heartbeat_s`) without a byte": seconds(2 * LINK["heartbeat_s"]),
        "a link that is down (`outage_s`)": seconds(LINK["outage_s"]),
        "a free descriptor": seconds(open_files.RETRY_S),
        "a checkpoint; a batch": (
            f"{seconds(_same(writer._TIMEOUT_S, batch_loader._TIMEOUT_S))} each"
        ),
        "threads, after an error; at exit; the command": (
            f"{seconds(threads.CLOSE_S)}; {seconds(threads.EXIT_S)}; {seconds(app._EXIT_S)}"
        ),
        "a diagnosis of a host; a host's wait for the guest": (
            f"{seconds(probes.MAX_HOST_S)}; {seconds(probes.MAX_GUEST_S)}"
        ),
        "the selection of an alignment": f"{selection.MAX_WAIT_S / 3600:g} h",
        "rounds that a guest makes a host execute": f"{plan.MAX_ATTEMPTS} times the job's",
        "restarts of peers without a new checkpoint, or part of a prediction": (
            f"{restarts.MAX_RESTARTS}"
        ),
        "restarts of peers": f"{aligning.MAX_RESTARTS}",
        "ids answered over failed attempts": (
            f"{answered.MAX_ANSWERS_PER_ROW} for each row that the peer declares, or had answered "
            "in its largest attempt"
        ),
        "rows that a peer may declare": (
            f"2^{max_rows}; with `--shard`, 2^{max_rows} times the number of shards"
        ),
        "declared size of a Parquet column": (
            f"{parquet_sizes._MAX_CHUNK_BYTES // MIB} MiB, or {parquet_sizes._MAX_RATIO:,} times "
            "its stored size if that is more"
        ),
        "text": f"{decoded_text.MAX_BATCH_TEXT // MIB} MiB",
        "columns; numbers in a row": (
            f"{model_folder.MAX_COLUMNS:,}; 2^{model_folder._MAX_ROW_NUMBERS.bit_length() - 1}"
        ),
    }


def _same(one: float, other: float) -> float:
    assert one == other
    return one


def stated() -> dict[str, str]:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    section = text.partition("## What is bounded, by how much")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*) \| [^|]* \|$", section, re.MULTILINE)
    return {what: bound for what, bound in rows if bound.strip() and what not in ("what", "---")}


def test_each_bound_is_the_one_that_the_code_has() -> None:
    assert stated() == {**expected(), **NOT_NUMBERS}

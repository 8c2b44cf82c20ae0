"""Parties that serve, as processes: raw rows, stores, two trained models, keys and settings."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from typer.testing import CliRunner

from celu.cli.app import app
from celu.data.alignment import write_alignment
from celu.data.store import PARTS, open_store
from celu.serving.model_folder import read_facts
from celu.testing import free_port, make_keys
from processes import STDOUT, CeluProcess

DEADLINE_S = 900.0  # no passing test waits this long
GUEST, HOST = "airline", "weather"
COMMON, OWN = 300, 40  # rows of both parties, and of each alone
SCHEMAS = {
    GUEST: """
id = "flight"
label = "late"
[numbers]
distance = { standardise = true }
seats = { missing = 100.0, log = true }
[categories]
carrier = { vocabulary = 10 }
""",
    HOST: """
id = "flight"
[numbers]
wind = { standardise = true }
[categories]
sky = { buckets = 50 }
""",
}
PARTY = """
role = "{role}"
name = "{name}"
threads = 1
connect_s = 600
{listen}
[peers.{peer}]
ca = "../{peer}/certs/ca.pem"
{connect}
[keys]
certificate = "certs/{name}.pem"
key = "certs/{name}.key"
[data]
store = "store"
alignment = "alignment"
[model]
bottom = {{ use = "wdl", embedding_dim = 3, hidden = [6], init_std = 0.4 }}
{top}
[serve]
{serve}
"""
JOB = """
guest = "airline"
seed = {seed}
rounds = {rounds}
batch_size = 32
[hosts.weather]
z_width = {width}
[evaluation]
every = 15
"""


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def make_files(folder: Path) -> None:
    """Raw rows, stores, an alignment and two models of each party; `models` has the older one."""
    random = np.random.default_rng(5)
    ids = [f"shared-{n}" for n in range(COMMON)]
    signal_ = random.normal(size=COMMON)
    for name in (GUEST, HOST):
        own = [f"{name}-only-{n}" for n in range(OWN)]
        rows = COMMON + OWN
        mixed = random.normal(size=rows)
        mixed[:COMMON] += signal_
        columns: dict[str, Any] = {"flight": ids + own}
        if name == GUEST:
            late = (mixed + random.normal(size=rows) > 0).astype(int)
            late[:COMMON] = signal_ + mixed[:COMMON] > 0
            columns |= {
                "late": late,
                "distance": mixed,
                "seats": [None if n % 7 == 0 else float(n % 90) for n in range(rows)],
                "carrier": [f"c{n % 5}" for n in range(rows)],
            }
        else:
            columns |= {"wind": mixed, "sky": [f"sky {n % 9}" for n in range(rows)]}
        (folder / name).mkdir(parents=True)
        pyarrow.csv.write_csv(pa.table(columns), folder / name / "raw.csv")
        (folder / name / "schema.toml").write_text(SCHEMAS[name])
        invoke(
            *("prepare", folder / name / "raw.csv", "--schema", folder / name / "schema.toml"),
            *("--out", folder / name / "store"),
        )
    align(folder)
    make_keys(folder, [GUEST, HOST])
    # Of two models of one second, the one with more rounds is newer.
    for number, width, rounds in (("1", 6, 30), ("2", 4, 31)):
        write_party(folder, GUEST, free_port())
        write_party(folder, HOST, free_port())
        (folder / "job.toml").write_text(JOB.format(seed=number, width=width, rounds=rounds))
        parties = [folder / name / "party.toml" for name in (GUEST, HOST)]
        run = folder / f"run{number}"
        invoke("simulate", *parties, "--job", folder / "job.toml", "--out", run)
        invoke("export", run, "--out", folder / GUEST / f"export{number}")
        invoke("export", run / "hosts" / HOST, "--out", folder / HOST / f"export{number}")
    for name in (GUEST, HOST):
        shutil.copytree(folder / name / "export1", folder / name / "models" / "1")
    (folder / "serving.toml").write_text(f'guest = "{GUEST}"\nhosts = ["{HOST}"]\n')


def align(folder: Path, drop: int = 0, store_name: str = "store") -> None:
    """Write the alignment that `celu align` finds, without the last `drop` rows of each part."""
    stores = {name: open_store(folder / name / store_name) for name in (GUEST, HOST)}
    tags = {n: {p: [bytes(t) for t in s.tags(p)] for p in PARTS} for n, s in stores.items()}
    for name, store in stores.items():
        peer = HOST if name == GUEST else GUEST
        rows = {}
        for part in PARTS:
            theirs = set(tags[peer][part])
            found = [n for n, tag in enumerate(tags[name][part]) if tag in theirs]
            rows[part] = np.array(found[: len(found) - drop], np.int64)
        counts = {peer: COMMON + OWN}
        write_alignment(folder / name / "alignment", store, rows, peers=counts, common=counts)


def write_party(folder: Path, name: str, port: int, serve: str = "", more: str = "") -> None:
    is_guest = name == GUEST
    text = PARTY.format(
        role="guest" if is_guest else "host",
        name=name,
        peer=HOST if is_guest else GUEST,
        listen=f'listen = "127.0.0.1:{port}"\n{more}' if is_guest else more,
        connect="" if is_guest else f'connect = "127.0.0.1:{port}"',
        top='top = "wdl"\nloss = "binary"' if is_guest else "",
        serve=serve,
    )
    (folder / name / "party.toml").write_text(text)


@dataclass
class Server:
    """One party's process, with its output in a file."""

    process: CeluProcess
    log: Path

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> str:
        """Wait until the output has a line with this text (a regular expression)."""

        def found() -> str | None:
            match = re.search(text, self.output())
            assert match or self.process.poll() is None, self.output()
            return match[0] if match else None

        return wait_until(found, self.output)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def wait_until(found: Callable[[], Any], describe: Callable[[], str] = lambda: "") -> Any:
    give_up_at = time.monotonic() + DEADLINE_S
    while not (result := found()):
        assert time.monotonic() < give_up_at, describe()
        time.sleep(0.05)
    return result


@dataclass
class Served:
    """A folder with both parties, and the processes that serve it."""

    folder: Path
    port: int
    serve: dict[str, str] = field(default_factory=dict)  # [serve] of each party
    processes: list[Server] = field(default_factory=list)
    http: tuple[str, int] = ("", 0)
    insecure: bool = False
    lookup: str = ""  # the module of a feature service

    def start(self, name: str, *options: str | Path) -> Server:
        serve = self.serve.get(name, "")
        if name == GUEST:
            deadline = "" if "deadline_ms" in serve else "deadline_ms = 60000\n"
            serve = f'listen = "127.0.0.1:0"\n{deadline}{serve}'
        more = "insecure = true\n" if self.insecure else ""
        write_party(self.folder, name, self.port, serve, more)
        arguments = ["serve", self.folder / name / "party.toml"]
        arguments += ["--serving", self.folder / "serving.toml"]
        arguments += ["--models", self.folder / name / "models", *options]
        log = self.folder / f"{name}-{len(self.processes)}.log"
        with log.open("w", encoding="utf-8") as file:
            process = CeluProcess(arguments, stdout=file.fileno(), stderr=STDOUT)
        server = Server(process, log)
        self.processes.append(server)
        if name == GUEST:
            address = server.wait_for(r"at https?://[\d.]+:\d+/").rsplit("/", 2)[1]
            self.http = address.split(":")[0], int(address.split(":")[1])
        return server

    def start_both(self) -> tuple[Server, Server]:
        guest, host = self.start(GUEST), self.start(HOST)
        self.wait_until_complete()
        return guest, host

    def wait_until_complete(self) -> None:
        """Wait until every host gives its Z."""
        wait_until(lambda: self.get("/v2/models/celu/ready")[0] == 200, self.outputs)

    def wait_for_model(self, name: str) -> None:
        def is_served() -> bool:
            return self.get("/v2/models/celu")[1].get("versions") == [name]

        wait_until(is_served, self.outputs)
        self.wait_until_complete()

    def outputs(self) -> str:
        return "\n".join(server.output() for server in self.processes)

    def connection(self, context: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        if context is not None:
            return http.client.HTTPSConnection(*self.http, timeout=DEADLINE_S, context=context)
        return http.client.HTTPConnection(*self.http, timeout=DEADLINE_S)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        connection = self.connection()
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(body) if is_json else body.decode()

    def post(
        self, body: bytes, headers: dict[str, str] | None = None, path: str = ""
    ) -> tuple[int, Any]:
        connection = self.connection()
        try:
            connection.request("POST", path or "/v2/models/celu/infer", body, headers or {})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def infer(self, ids: Sequence[str], **columns: Sequence[Any]) -> Inferred:
        status, answer = self.post(request_of(ids, **columns))
        assert status == 200, answer
        return Inferred.read(answer)

    def model(self, number: str) -> str:
        """The name of a model."""
        return read_facts(self.folder / GUEST / f"export{number}").name

    def add_model(self, name: str, number: str) -> None:
        """Export another model into the folder that a party serves from."""
        models = self.folder / name / "models"
        shutil.copytree(self.folder / name / f"export{number}", models / ".partial")
        (models / ".partial").rename(models / number)

    def close(self) -> None:
        for server in self.processes:
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGCONT)
                server.process.kill()
            server.process.wait(DEADLINE_S)


def request_of(ids: Sequence[str], **columns: Sequence[Any]) -> bytes:
    inputs = [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": list(ids)}]
    for name, values in columns.items():
        is_text = any(isinstance(value, str) for value in values)
        datatype = "BYTES" if is_text else "FP64"
        inputs.append(
            {"name": name, "shape": [len(values)], "datatype": datatype, "data": list(values)}
        )
    return json.dumps({"inputs": inputs}).encode()


@dataclass(frozen=True)
class Inferred:
    """An answer: scores and flags of its rows, and the model."""

    model: str
    scores: list[float]
    degraded: list[bool]
    missing: list[str]

    @staticmethod
    def read(answer: dict[str, Any]) -> Inferred:
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        return Inferred(
            answer["model_version"], outputs["score"], outputs["degraded"], outputs["missing"]
        )


def predicted(folder: Path, number: str) -> dict[str, float]:
    """The scores of `celu predict` with a model, by id."""
    out = folder / f"scores{number}.parquet"
    invoke(
        *("predict", *(folder / name / "party.toml" for name in (GUEST, HOST))),
        *("--serving", folder / "serving.toml", "--model", f"export{number}", "--out", out),
    )
    found = pq.read_table(out)
    return dict(zip(found["id"].to_pylist(), found["score"].to_pylist(), strict=True))


@contextmanager
def served_copy(template: Path, folder: Path) -> Iterator[Served]:
    """A copy of the files of both parties; its processes end with the block."""
    shutil.copytree(template, folder, symlinks=True)
    served = Served(folder, free_port())
    try:
        yield served
    finally:
        served.close()

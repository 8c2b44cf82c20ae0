"""The embedded sets with settings files beside them: a job that runs as it stands.

FOLDER/job.toml                    the contract
FOLDER/GUEST/party.toml            each party's private settings, beside its own rows
FOLDER/HOST/party.toml
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from celu.data.table import SIZES_KEY


@dataclass(frozen=True)
class Starter:
    """What the settings files of an embedded set say."""

    guest: str
    host: str
    model: str
    batch_size: int
    z_width: int
    embedding_dim: int
    hidden: int
    rounds: int
    evaluate_every: int


FLIGHTS = Starter("airline", "weather", "wdl", 1024, 64, 8, 64, 500, 50)
CRITEO = Starter("guest", "host", "wdl", 4096, 256, 128, 256, 2000, 200)
AVAZU = Starter("guest", "host", "dssm", 4096, 256, 128, 256, 2000, 200)

_JOB = """\
# The contract: every party holds this file in the same form.
seed = 1
batch_size = {batch_size}
rounds = {rounds}
guest = "{guest}"

[hosts.{host}]
z_width = {z_width}

[evaluation]
every = {evaluate_every}
"""

_PARTY = """\
# Private to {name}: never leaves this party.
role = "{role}"
name = "{name}"
run_dir = "run"
{where}
[peers.{peer}]
ca = "../{peer}/certs/ca.pem"   # the file that {peer} sent
{connect}
[keys]
certificate = "certs/{name}.pem"
key = "certs/{name}.key"

[data]
train = "train.parquet"
test = "test.parquet"
{label}
[data.inputs]
{inputs}

[model]
bottom = {{ use = "{model}", embedding_dim = {embedding_dim}, hidden = [{hidden}] }}
{top}"""

_TOP = """\
top = "{model}"
loss = "binary"
"""


def write_settings(folder: Path, starter: Starter, port: int = 7443) -> None:
    """Write the contract and both party files, the guest listening, for rows already there."""
    values = {**starter.__dict__}
    (folder / "job.toml").write_text(_JOB.format(**values), encoding="utf-8")
    for role, name, peer in (
        ("guest", starter.guest, starter.host),
        ("host", starter.host, starter.guest),
    ):
        is_guest = role == "guest"
        text = _PARTY.format(
            **values,
            role=role,
            name=name,
            peer=peer,
            where=f'listen = "0.0.0.0:{port}"\n' if is_guest else "",
            connect="" if is_guest else f'connect = "localhost:{port}"\n',
            label='label = "label"\n' if is_guest else "",
            inputs=_inputs(folder / name / "train.parquet"),
            top=_TOP.format(**values) if is_guest else "",
        )
        (folder / name / "party.toml").write_text(text, encoding="utf-8")


def _inputs(path: Path) -> str:
    import json

    import pyarrow.parquet as pq

    schema = pq.read_schema(path)
    ids = list(json.loads((schema.metadata or {}).get(SIZES_KEY, b"{}")))
    numbers = [name for name in schema.names if name not in ids and name != "label"]
    lines = [
        f"{key} = {json.dumps(columns)}"
        for key, columns in (("ids", ids), ("numbers", numbers))
        if columns
    ]
    return "\n".join(lines)

"""Templates of settings files, for data that celu writes: a job that runs without edits.

FOLDER/job.toml                    the contract
FOLDER/GUEST/party.toml            each party's private settings, beside its own rows
FOLDER/HOST/party.toml
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class SettingsTemplate:
    """Values for the settings files; `bottom` and `top` are TOML values."""

    guest: str
    host: str
    bottom: str
    top: str
    batch_size: int = 4096
    z_width: int = 256
    rounds: int = 2000
    evaluate_every: int = 200


FLIGHTS = SettingsTemplate(
    guest="airline",
    host="weather",
    bottom='{ use = "wdl", embedding_dim = 8, hidden = [64] }',
    top='{ use = "wdl", hidden = [64] }',
    batch_size=1024,
    z_width=64,
    rounds=500,
    evaluate_every=50,
)
# The paper's top model is linear, so the comparison of methods uses a linear one.
FLIGHTS_PAPER = replace(FLIGHTS, top='"wdl"')
CRITEO = SettingsTemplate(guest="guest", host="host", bottom='"wdl"', top='"wdl"')
AVAZU = SettingsTemplate(guest="guest", host="host", bottom='"dssm"', top='"dssm"')

_JOB = """\
# The contract: every party has the same copy of this file.
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
{endpoint}
[peers.{peer}]
ca = "../{peer}/certs/ca.pem"   # the file that {peer} sent
{connect}
[keys]
certificate = "certs/{name}.pem"
key = "certs/{name}.key"

[data]
store = "store"
{aligned}

[model]
bottom = {bottom}
{top}"""


_ALIGN = 'alignment = "alignment"   # written by celu align party.toml'


def write_settings(
    folder: Path,
    template: SettingsTemplate,
    port: int = 7443,
    *,
    local: bool = False,
    aligned: bool = True,
) -> None:
    """Write the contract and both party files; the guest listens.

    `local` is for several parties on one machine: loopback only, and one thread each. Without
    `aligned`, `celu align` must run before `celu run`.
    """
    values = template.__dict__
    (folder / "job.toml").write_text(_JOB.format(**values), encoding="utf-8")
    address = "127.0.0.1" if local else "0.0.0.0"  # noqa: S104 - the other company connects
    threads = "threads = 1\n" if local else "# threads = 1   if parties share a machine\n"
    for role, name, peer in (
        ("guest", template.guest, template.host),
        ("host", template.host, template.guest),
    ):
        is_guest = role == "guest"
        text = _PARTY.format(
            role=role,
            name=name,
            peer=peer,
            endpoint=threads + (f'listen = "{address}:{port}"\n' if is_guest else ""),
            connect="" if is_guest else f'connect = "localhost:{port}"\n',
            aligned="aligned = true   # both parties have the same rows" if aligned else _ALIGN,
            bottom=template.bottom,
            top=f'top = {template.top}\nloss = "binary"\n' if is_guest else "",
        )
        (folder / name / "party.toml").write_text(text, encoding="utf-8")

"""One party's private settings (`party.toml`): they never leave the party."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PositiveInt,
    model_validator,
)

from celu.config.audit import AuditSettings
from celu.config.class_weights import ClassWeights, parse_class_weights
from celu.config.job import Job, Role
from celu.config.link import AnyLink
from celu.config.privacy import PartyPrivacy
from celu.config.reading import Address, FilePath, PartyName, Settings, read_settings
from celu.config.schema import RESERVED
from celu.config.serve import ServeSettings
from celu.config.serving import Serving
from celu.errors import ConfigError

Seconds = Annotated[float, Field(gt=0, le=1e6)]
# Streams of one link. Each fills a buffer at the receiver while it is not read: 128 KiB behind a
# gateway, 3 MiB without.
MAX_STRIPES, MAX_DIRECT_STRIPES = 64, 4


class ModelSpec(Settings):
    """A module to build: `use` is a built-in name or "module:Class"; the rest are its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    use: str
    """A built-in name or "module:Class"; the other keys of the table are its options."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for the constructor."""
        return dict(self.model_extra or {})


def _spec(value: Any) -> Any:
    return {"use": value} if isinstance(value, str) else value


def _one_name(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class ModelSettings(Settings):
    """A party's modules.

    `metrics` are what the guest's evaluations report besides the loss: names, or "module:name" of
    its own; by default all that fit the loss. `class_weights` say how much the rows of each class
    count in its training loss: "balanced", or weights by class, 1 for those that are not named.
    `shard` says whether each of several ranks holds all embedding tables or its share of their
    rows; by default they hold shares where a whole table does not fit into memory.
    """

    bottom: Annotated[ModelSpec, BeforeValidator(_spec)] | None = None
    top: Annotated[ModelSpec, BeforeValidator(_spec)] | None = None
    loss: str | None = None
    """The guest's: binary, multiclass, regression or "module:name"."""
    metrics: Annotated[list[str], BeforeValidator(_one_name), Field(min_length=1)] | None = None
    """What the guest's evaluations report besides the loss, "module:name" for its own."""
    class_weights: Annotated[ClassWeights, PlainValidator(parse_class_weights)] | None = None
    """How much the rows of each class count in the guest's training loss."""
    z_width: PositiveInt | None = None
    """The width of the guest's own Z; by default that of the first host."""
    shard: bool | None = None
    """Whether ranks share the rows of embedding tables; by default where memory is short."""


def _is_a_keyword(name: str) -> str:
    if not name.isidentifier() or name in RESERVED:
        raise ValueError(f"expected a name for an argument of the bottom model, got {name!r}")
    return name


class DataSettings(Settings):
    """Where a party's rows are, and how they were matched with the other parties' rows.

    `alignment` is the folder that `celu align` writes. `aligned = true` declares instead that the
    stores of all parties already hold the same rows; the run still compares them. `inputs` maps
    each input of the bottom model to its columns in the store; by default "ids" are all categories,
    "numbers" all numbers and parts of dates, and "bags" all bags.
    """

    store: FilePath
    """The rows, which celu prepare wrote."""
    alignment: FilePath | None = None
    """The folder that celu align writes; or set aligned."""
    aligned: bool = False
    """The stores of all parties hold the same rows already."""
    inputs: (
        dict[
            Annotated[str, AfterValidator(_is_a_keyword)],
            Annotated[list[str], Field(min_length=1)],
        ]
        | None
    ) = None
    """The columns of each input of the bottom model, by the name of its argument."""

    @model_validator(mode="after")
    def _alignment_or_aligned(self) -> DataSettings:
        if (self.alignment is None) != self.aligned:
            raise ValueError(
                'expected either alignment, the folder that "celu align" writes, or aligned = true '
                "where the stores of all parties hold the same rows"
            )
        return self


class Keys(Settings):
    """This party's certificate and private key (PEM)."""

    certificate: FilePath
    """This party's certificate (PEM)."""
    key: FilePath
    """Its private key (PEM)."""


class GatewaySettings(Settings):
    """A peer's gateway: the CA of its certificate (PEM), and the name in it.

    `name` defaults to the host in the peer's address.
    """

    ca: FilePath
    """The authority of the gateway's certificate (PEM)."""
    name: (
        Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")] | None
    ) = None
    """The name in that certificate; by default the host in the address."""


class Peer(Settings):
    """One other party: the CA of its certificate, and where to reach it.

    Without `connect`, the peer connects to us, at `listen`. With `gateway`, the address is that of
    a gateway in front of the peer. Over gRPC, messages are striped over `streams` on each of
    `connections`, for gateways and links that throttle a single stream.
    """

    ca: FilePath | None = None
    """The authority of the peer's certificate: the ca.pem that it sent."""
    connect: Address | None = None
    """HOST:PORT of a peer that listens; without it, the peer connects to us."""
    gateway: GatewaySettings | None = None
    streams: Annotated[int, Field(ge=1, le=MAX_STRIPES)] = 1
    """gRPC streams on each connection, for links that throttle a single one."""
    connections: Annotated[int, Field(ge=1, le=16)] = 1
    """gRPC connections, likewise."""

    @model_validator(mode="after")
    def _stripes_are_within_bounds(self) -> Peer:
        stripes = self.streams * self.connections
        if stripes > MAX_STRIPES:
            raise ValueError(
                f"expected streams times connections of at most {MAX_STRIPES}, got {stripes}"
            )
        if self.gateway is None and stripes > MAX_DIRECT_STRIPES:
            raise ValueError(
                f"expected streams times connections of at most {MAX_DIRECT_STRIPES} without a "
                f"gateway, got {stripes}"
            )
        return self


TrackerName = Literal["tensorboard", "mlflow", "wandb"]


class PartySettings(Settings):
    """One party's private settings (`party.toml`). Paths are relative to the file."""

    role: Role
    """The guest has the labels."""
    name: PartyName
    """This party's name in the contract."""
    data: DataSettings | None = None
    model: ModelSettings | None = None
    peers: dict[PartyName, Peer] = {}
    keys: Keys | None = None
    listen: Address | None = None
    """HOST:PORT at which peers reach us."""
    carrier: Literal["grpc", "websocket"] = "grpc"
    """What carries the messages."""
    gateway: bool = False
    """Whether our gateway forwards connections to us in plain HTTP; peers use inner TLS."""
    insecure: bool = False
    """Without certificates and encryption, for tests on one machine."""
    device: str = "cpu"
    """Where the modules are: "cpu", "cuda" or "cuda:1"."""
    threads: PositiveInt | None = None
    """CPU threads of torch; by default its own choice."""
    slices: PositiveInt = 1
    """Slices of each batch, one after the other, with the bits of as many ranks."""
    graphs: bool = True
    """On a GPU: whether steps are captured as CUDA graphs."""
    precision: Literal["fp32", "tf32"] = "fp32"
    """On a GPU: how exact matrix products of training are; tf32 is faster."""
    run_dir: FilePath = Path("runs")
    """The run folder."""
    start: FilePath | None = None
    """The folder of an earlier run: start from its weights."""
    connect_s: Seconds = 300.0
    """The longest wait for the peers, in seconds."""
    deadline_s: Seconds = 120.0
    """The longest wait for a connected peer's next message."""
    outage_s: Seconds = 600.0
    """The longest wait for a link to come up again."""
    heartbeat_s: Seconds = 10.0
    """A peer that is silent for two of these counts as gone."""
    link: AnyLink | None = None  # emulates a slow link for the messages that this party sends
    serve: ServeSettings = ServeSettings()
    privacy: PartyPrivacy = PartyPrivacy()
    tracking: list[TrackerName] = []
    """Where metrics also go, besides the run folder."""
    audit: AuditSettings | None = None  # whether the run measures what it leaked

    def require_data(self) -> DataSettings:
        """The `[data]` section; raises ConfigError if there is none."""
        if self.data is None:
            raise ConfigError(
                "party.toml: [data] is missing: name the store that celu prepare wrote"
            )
        return self.data

    def own_width(self, job: Job) -> int:
        """The width of this party's Z: a host's is in the contract, the guest chooses its own."""
        if self.role == "host":
            return job.hosts[self.name].z_width
        first = next((host.z_width for host in job.hosts.values()), 64)
        return self.require_model().z_width or first

    def require_model(self) -> ModelSettings:
        """The `[model]` section; raises ConfigError if there is none."""
        if self.model is None:
            raise ConfigError(
                "party.toml: [model] is missing: name the modules to build, or pass modules to "
                "celu.run in Python"
            )
        return self.model

    @model_validator(mode="after")
    def _budget_is_of_labels(self) -> PartySettings:
        if self.role == "host" and self.privacy.budget is not None:
            raise ValueError("privacy.budget belongs to the guest, which has the labels")
        return self

    @model_validator(mode="after")
    def _role_has_its_modules(self) -> PartySettings:
        model = self.model
        if model is None:  # passed to celu.run in Python
            return self
        if self.role == "guest":
            if model.top is None or model.loss is None:
                raise ValueError("model.top and model.loss are missing: the guest needs both")
        else:
            if model.bottom is None:
                raise ValueError("model.bottom is missing: a host needs a bottom model")
            for key in ("top", "loss", "metrics", "class_weights"):
                if getattr(model, key) is not None:
                    raise ValueError(f"model.{key} belongs to the guest, not to a host")
        return self

    @model_validator(mode="after")
    def _peers_can_be_reached_and_authenticated(self) -> PartySettings:
        for name, peer in self.peers.items():
            if peer.connect is None and self.listen is None:
                raise ValueError(
                    f"peers.{name}.connect and listen are both missing: give one of them"
                )
            if not self.insecure and peer.ca is None:
                raise ValueError(f"peers.{name}.ca is missing: the peer's CA certificate (PEM)")
        if self.peers and not self.insecure and self.keys is None:
            raise ValueError('keys is missing: create them with "celu certs party NAME"')
        return self

    @model_validator(mode="after")
    def _gateways_and_stripes_are_valid(self) -> PartySettings:
        accepts = any(peer.connect is None for peer in self.peers.values())
        if self.gateway and (self.listen is None or not accepts):
            raise ValueError("gateway = true: expected listen, and a peer that connects to us")
        if self.gateway and self.insecure:
            raise ValueError("gateway = true: expected keys for the inner TLS, got insecure = true")
        for name, peer in self.peers.items():
            striped = peer.streams > 1 or peer.connections > 1
            if peer.connect is None and (striped or peer.gateway is not None):
                raise ValueError(
                    f"peers.{name}.connect is missing: gateway, streams and connections apply to a "
                    "peer that we connect to"
                )
            if peer.gateway is not None and self.insecure:
                raise ValueError(
                    f"peers.{name}.gateway: expected keys for the inner TLS, got insecure = true"
                )
            if self.carrier == "websocket" and striped:
                raise ValueError(
                    f'peers.{name}.streams, connections: expected 1 with carrier = "websocket", '
                    "which needs no striping"
                )
        return self


class PartyFile(NamedTuple):
    """A party's settings, and the folder of their file."""

    settings: PartySettings
    folder: Path


def read_party(path: Path) -> PartySettings:
    """Read and validate a party's private settings; raises ConfigError."""
    return read_settings(PartySettings, path)


def read_parties(paths: Sequence[Path], job: Job, job_file: Path) -> dict[str, PartyFile]:
    """The settings of all parties of a job by name, for one process; raises ConfigError."""
    found = {}
    for path in paths:
        party = read_party(path)
        check_names(job, party, path)
        found[party.name] = PartyFile(party, path.parent.resolve())
    missing = {job.guest, *job.hosts} - found.keys()
    if missing:
        raise ConfigError(
            f"{job_file}: expected the party.toml of every party, got none for {sorted(missing)}"
        )
    return found


def check_names(job: Job | Serving, party: PartySettings, path: Path) -> None:
    """Check that a contract gives this party its name and role; raises ConfigError."""
    expected = {job.guest: "guest", **dict.fromkeys(job.hosts, "host")}
    if expected.get(party.name) != party.role:
        parts = ", ".join(f"{name} ({role})" for name, role in expected.items())
        raise ConfigError(
            f"{path}: name: expected one of the contract's parties, {parts}; "
            f"got {party.name} ({party.role})"
        )
    peers = set(job.hosts) if party.role == "guest" else {job.guest}
    if set(party.peers) != peers:
        raise ConfigError(
            f"{path}: peers: expected {', '.join(sorted(peers)) or 'none'}, "
            f"got {', '.join(sorted(party.peers)) or 'none'}"
        )

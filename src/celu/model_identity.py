"""The identity of a trained model: the run, the round, and a digest of every party's weights.

At the end of a run the hosts send digests to the guest, which sends all of them back. So every
party knows the same name of the same model, and can later check that its peers hold it too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt, ValidationError
from torch import Tensor, nn

from celu.config.reading import PartyName, Settings, describe
from celu.errors import ProtocolError
from celu.label_map import LabelMap

TRAINED = "trained.json"  # in a run folder
_NAME_DIGITS = 16
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]


class ModelIdentity(Settings):
    """What names a model; equal at all parties of a run."""

    run: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    round: Annotated[int, Field(ge=0, le=10**15)]
    weights: Annotated[dict[PartyName, Digest], Field(min_length=1, max_length=1000)]  # by party
    # By the guest's clock, in UTC. It orders models, and is not a part of the name.
    trained_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]

    @property
    def name(self) -> str:
        """A short name, the same at all parties."""
        digests = sorted(self.weights.items())
        text = f"{self.run} {self.round} {digests}"
        return hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS]

    @property
    def age_key(self) -> tuple[str, int, str]:
        """Sorts models from the oldest to the newest, in the same order at all parties."""
        return self.trained_at, self.round, self.name


class InputSpec(Settings):
    """One row of an input of a bottom model: its shape, [] for a single value, and its type."""

    shape: Annotated[list[Count], Field(max_length=64)]
    dtype: Literal["float32", "int64"]

    @classmethod
    def of(cls, rows: Tensor) -> InputSpec:
        """The spec of some rows as a batch has them: codes of any integer type are int64 there."""
        is_float = rows.is_floating_point()
        return cls(shape=list(rows.shape[1:]), dtype="float32" if is_float else "int64")

    @property
    def num_columns(self) -> int:
        """How many columns have names."""
        return self.shape[0] if self.shape else 1

    def numbered_columns(self, name: str) -> list[str]:
        """Names for the columns of an input whose rows came from Python."""
        return [f"{name}.{i}" for i in range(self.num_columns)] if self.shape else [name]

    def zeros(self, rows: int) -> Tensor:
        """An input of that many rows."""
        dtype = torch.int64 if self.dtype == "int64" else torch.float32
        return torch.zeros(rows, *self.shape, dtype=dtype)


class TrainedModel(Settings):
    """One party's part of a model, as its run folder describes it (`trained.json`)."""

    identity: ModelIdentity
    inputs: dict[str, InputSpec]  # of the bottom model, by name
    sizes: dict[str, list[PositiveInt]]  # of inputs of codes: the number of codes of each column
    output: Literal["binary", "multiclass", "regression"] | None = None  # at the guest
    label_map: LabelMap = LabelMap()  # at the guest
    mean_z: dict[PartyName, list[float]] = {}  # of each host; at the guest
    own_weights: Digest | None = None  # of this party's weights, if the identity has the twin's
    train_rows: Count
    validation_rows: Count = 0
    test_rows: Count

    def to_json(self) -> str:
        """The content of the file."""
        return self.model_dump_json(indent=2) + "\n"


@dataclass(frozen=True)
class StreamedTensor:
    """A tensor that is in no memory as a whole: `parts` yields its rows block by block."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: Callable[[], Iterator[Tensor]]

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return math.prod(self.shape) * self.dtype.itemsize


def now() -> str:
    """The current time, for `trained_at`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def weights_of(modules: Mapping[str, nn.Module | None]) -> dict[str, Tensor]:
    """All parameters and buffers on the CPU; each key starts with its module's name."""
    return {
        f"{name}.{key}": tensor.detach().cpu().contiguous()
        for name, module in modules.items()
        if module is not None
        for key, tensor in module.state_dict().items()
    }


def digest_weights(weights: Mapping[str, Tensor | StreamedTensor]) -> str:
    """A digest of names, types, shapes and values, as from `weights_of`."""
    hash_ = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        hash_.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        for part in bytes_of(tensor):
            hash_.update(part)
    return hash_.hexdigest()


def bytes_of(tensor: Tensor | StreamedTensor) -> Iterator[memoryview]:
    """The bytes of a tensor, in parts."""
    for part in tensor.parts() if isinstance(tensor, StreamedTensor) else [tensor]:
        if part.numel():
            flat = part.detach().cpu().contiguous().reshape(-1)
            # As bytes: NumPy has no bfloat16.
            yield memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def host_body(digest: str, mean_z: Tensor) -> dict[str, Any]:
    """What a host sends: the digest of its weights, and its mean Z over some training rows."""
    return {"weights": digest, "mean_z": mean_z.tolist()}


def read_host_body(
    peer: str, body: Mapping[str, Any] | None, width: int
) -> tuple[str, list[float]]:
    """The digest and the mean Z of a host; raises ProtocolError."""
    digest, mean_z = (body or {}).get("weights"), (body or {}).get("mean_z")
    is_valid = (
        isinstance(digest, str)
        and len(digest) == 64
        and set(digest) <= set("0123456789abcdef")
        and isinstance(mean_z, list)
        and len(mean_z) == width
        and all(isinstance(value, float) and math.isfinite(value) for value in mean_z)
    )
    if not is_valid:
        raise ProtocolError(
            f"MODEL of {peer}: expected a digest of its weights and a mean Z of {width} numbers"
        )
    assert isinstance(digest, str) and isinstance(mean_z, list)
    return digest, mean_z


def read_guest_body(
    peer: str, body: Mapping[str, Any] | None, expected: Mapping[str, Any]
) -> ModelIdentity:
    """The identity that the guest sent to a host.

    Raises ProtocolError if a field that the host knows, in `expected`, has another value.
    """
    try:
        identity = ModelIdentity.model_validate(body or {})
    except ValidationError as error:
        problem = describe(error)[0]
        raise ProtocolError(f"MODEL of {peer}: expected a model's identity: {problem}") from error
    known = {
        "run": identity.run,
        "round": identity.round,
        "parties": sorted(identity.weights),
        **{f"weights of {name}": digest for name, digest in identity.weights.items()},
    }
    for field, value in expected.items():
        if known.get(field) != value:
            raise ProtocolError(
                f"MODEL of {peer}: {field}: expected what this party holds, got something else"
            )
    return identity

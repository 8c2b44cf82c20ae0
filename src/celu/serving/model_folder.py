"""An exported model: one party's part of a trained model, in a folder that needs no other file.

    MODEL/model.json            its identity, and how to build and feed its modules
    MODEL/weights.safetensors   the party's weights
    MODEL/schema.json           how raw rows are encoded, if the model was trained on a store
    MODEL/card.md               a model card for people
    MODEL/*.pt2, *.onnx         the modules for other runtimes, on request; celu never reads them

`load_model` builds the modules and checks the weights against the digest in the identity. Nothing
is unpickled. A user's own modules are imported by name, as in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from celu.config.job import Job, Role
from celu.config.party import ModelSpec
from celu.config.privacy import Positive
from celu.config.reading import PartyName, Settings, read_json
from celu.config.schema import SCHEMA_FILE, StoreSchema, read_store_schema
from celu.engine.device import find_device
from celu.errors import CeluError, ConfigError, ModelError
from celu.label_map import LabelMap
from celu.metrics.names import Output
from celu.model_identity import Digest, InputSpec, ModelIdentity, digest_weights
from celu.models.building import build_bottom, build_top
from celu.models.built_in import BOTTOMS, TOPS
from celu.models.clipped import Clipped
from celu.serving.model import Model

MODEL_FILE, WEIGHTS_FILE, CARD_FILE = "model.json", "weights.safetensors", "card.md"
MAX_COLUMNS = 100_000  # of an input
_MAX_ROW_NUMBERS = 1 << 24  # of all inputs: a row of zeros is made to try a model
_Columns = Annotated[list[str], Field(max_length=MAX_COLUMNS)]


class ModelFacts(Settings):
    """The content of `model.json`."""

    format: Literal["celu-model-1"] = "celu-model-1"
    party: PartyName
    role: Role
    guest: PartyName
    hosts: dict[PartyName, PositiveInt]  # the width of each host's Z, in the order of the job
    identity: ModelIdentity
    inputs: dict[str, _Columns]  # of the bottom model, by name: their columns, in order
    input_specs: dict[str, InputSpec]
    sizes: dict[str, list[PositiveInt]]  # of inputs of codes: the number of codes of each column
    # Of this party's Z. None at a guest that has none, or whose bottom came from Python.
    z_width: PositiveInt | None
    bottom: ModelSpec | None  # None at a guest without a bottom, and for modules from Python
    top: ModelSpec | None  # of the guest; None for modules from Python
    output: Output | None  # at the guest
    label_map: LabelMap = LabelMap()  # at the guest
    mean_z: dict[PartyName, list[float]] = {}  # of each host; at the guest
    schema_digest: str | None  # of the store that it was trained on
    own_weights: Digest | None = None  # of the guest's weights, if the identity has its twin's
    z_clip: Positive | None = None  # at a host, if training clipped its Z to this length

    @property
    def name(self) -> str:
        """The model's name, the same at all parties."""
        return self.identity.name

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ModelFacts:
        parties = {self.guest, *self.hosts}
        if self.party not in parties or set(self.identity.weights) != parties:
            raise ValueError(f"expected digests of the weights of {sorted(parties)}")
        if (self.role == "guest") != (self.party == self.guest):
            raise ValueError(f"role: {self.party} is not a {self.role} of this model")
        if self.role == "guest":
            if self.output is None:
                raise ValueError("output: expected what a prediction is, got none")
            if {host: len(mean) for host, mean in self.mean_z.items()} != self.hosts:
                raise ValueError(f"mean_z: expected numbers of {self.hosts}")
        else:
            belong_to_guest = (self.top, self.output, self.mean_z or None)
            if any(b is not None for b in belong_to_guest) or self.label_map != LabelMap():
                raise ValueError(
                    "top, output, label_map, mean_z: expected none, they belong to the guest"
                )
            if self.z_width != self.hosts[self.party]:
                raise ValueError(f"z_width: expected {self.hosts[self.party]}")
        return self

    @model_validator(mode="after")
    def _inputs_fit_together(self) -> ModelFacts:
        columns = {name: len(columns) for name, columns in self.inputs.items()}
        if columns != {name: spec.num_columns for name, spec in self.input_specs.items()}:
            raise ValueError("input_specs: expected the inputs and their numbers of columns")
        if sum(math.prod(spec.shape) for spec in self.input_specs.values()) > _MAX_ROW_NUMBERS:
            raise ValueError(f"input_specs: expected rows of at most {_MAX_ROW_NUMBERS:,} numbers")
        for name, sizes in self.sizes.items():
            if len(sizes) != columns.get(name):
                raise ValueError(f"sizes.{name}: expected one for each column of the input")
        if self.bottom is not None and (self.z_width is None or not self.inputs):
            raise ValueError("bottom: expected none without inputs and z_width")
        return self


def read_facts(folder: Path | str) -> ModelFacts:
    """Read and validate `model.json`; raises ConfigError."""
    export = 'write one with "celu export RUN --out FOLDER"'
    return read_json(ModelFacts, Path(folder) / MODEL_FILE, "an exported model", export)


def load_model(
    folder: Path | str,
    *,
    modules: Path | None = None,
    bottom: nn.Module | None = None,
    top: nn.Module | None = None,
    device: str = "cpu",
) -> Model:
    """Load an exported model, on a device.

    Python searches the folder `modules` first for a user's own modules. `bottom` and `top` are for
    models that were trained with modules from Python: instances of the same classes, whose weights
    are replaced. Raises ConfigError for files that are missing or damaged and for a device that is
    not available, ModelError for weights that do not fit the modules or are not those of the
    identity.
    """
    folder = Path(folder)
    facts = read_facts(folder)
    weights = read_weights(folder / WEIGHTS_FILE, facts, "export the run again")
    schema = _read_schema(folder, facts)
    return build_model(
        facts, weights, schema, folder, modules=modules, bottom=bottom, top=top, device=device
    )


def read_weights(path: Path, facts: ModelFacts, advice: str) -> dict[str, Tensor]:
    """A party's weights, mapped from their file; `advice` is what to do if they are damaged.

    Raises ConfigError for a file that cannot be read, ModelError for weights of another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ConfigError(f"{path}: expected weights, got: {reason}; {advice}") from error
    if digest_weights(weights) != (facts.own_weights or facts.identity.weights[facts.party]):
        raise ModelError(
            f"{path}: these are not the weights of model {facts.name}: the file is damaged or was "
            f"replaced; {advice}"
        )
    return weights


def build_model(
    facts: ModelFacts,
    weights: Mapping[str, Tensor],
    schema: StoreSchema | None,
    where: Path,
    *,
    modules: Path | None = None,
    bottom: nn.Module | None = None,
    top: nn.Module | None = None,
    device: str = "cpu",
) -> Model:
    """Build the modules and load the weights; `where` is for messages. Raises as `load_model`."""
    target = find_device(device)
    if bottom is None and facts.bottom is not None:
        bottom = _build("bottom", facts.bottom.use in BOTTOMS, facts, weights, where, modules)
    if top is None and facts.top is not None:
        top = _build("top", facts.top.use in TOPS, facts, weights, where, modules)
    for name, module, is_needed in (
        ("bottom", bottom, bool(facts.inputs)),
        ("top", top, facts.role == "guest"),
    ):
        if is_needed and module is None:
            raise ModelError(
                f"{where}: the {name} model came from Python in training; pass an instance of its "
                f"class as {name}"
            )
    named = {"bottom": bottom, "top": top}
    _check_fit(where, named, weights)
    for name, module in named.items():
        if module is not None:
            prefix = f"{name}."
            module.load_state_dict(
                {k.removeprefix(prefix): t for k, t in weights.items() if k.startswith(prefix)}
            )
            module.to(target).eval()
    return Model(facts, with_clip(bottom, facts), top, schema, target)


def z_clip_of(job: Job) -> float | None:
    """The greatest length of a row of Z at the hosts of a job, if they clip it."""
    return None if job.privacy.z_noise is None else job.privacy.z_noise.clip


def with_clip(bottom: nn.Module | None, facts: ModelFacts) -> nn.Module | None:
    """A bottom whose Z is clipped as in training."""
    return bottom if bottom is None or facts.z_clip is None else Clipped(bottom, facts.z_clip)


def _build(
    name: Literal["bottom", "top"],
    is_built_in: bool,
    facts: ModelFacts,
    weights: Mapping[str, Tensor],
    where: Path,
    folder: Path | None,
) -> nn.Module:
    """A module that `model.json` names; it leaves torch's random state as it is.

    A built-in one is first built without memory: sizes in a damaged file cost nothing.
    """
    build = _bottom_builder(facts, folder) if name == "bottom" else _top_builder(facts, folder)
    try:
        with torch.random.fork_rng(devices=[]):
            if is_built_in:
                with torch.device("meta"):
                    sketch = build()
                own = {k: t for k, t in weights.items() if k.startswith(f"{name}.")}
                _check_fit(where, {name: sketch}, own)
            return build()
    except CeluError:
        raise
    except Exception as error:
        raise ModelError(
            f"{where}: the {name} model cannot be built: {type(error).__name__}: {error}"
        ) from error


def _bottom_builder(facts: ModelFacts, folder: Path | None) -> Callable[[], nn.Module]:
    spec, z_width = facts.bottom, facts.z_width
    assert spec is not None and z_width is not None  # ModelFacts checks this
    columns = {name: len(columns) for name, columns in facts.inputs.items()}
    sizes = {name: tuple(sizes) for name, sizes in facts.sizes.items()}
    return lambda: build_bottom(
        spec.use, spec.options, z_width=z_width, columns=columns, sizes=sizes, folder=folder
    )


def _top_builder(facts: ModelFacts, folder: Path | None) -> Callable[[], nn.Module]:
    spec = facts.top
    assert spec is not None
    widths = ([] if facts.z_width is None else [facts.z_width]) + list(facts.hosts.values())
    classes = facts.label_map.classes if facts.output == "multiclass" else None
    num_classes = len(classes) if classes else None
    return lambda: build_top(
        spec.use, spec.options, z_widths=widths, num_classes=num_classes, folder=folder
    )


def _check_fit(
    where: Path, modules: Mapping[str, nn.Module | None], weights: Mapping[str, Tensor]
) -> None:
    """Raise ModelError unless weights and modules have equal names, shapes and types."""
    expected = {
        f"{name}.{key}": (tensor.shape, tensor.dtype)
        for name, module in modules.items()
        if module is not None
        for key, tensor in module.state_dict().items()
    }
    got = {name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()}
    wrong = sorted(n for n in expected.keys() | got.keys() if expected.get(n) != got.get(n))
    if wrong:
        raise ModelError(
            f"{where}: the weights do not fit the modules: {', '.join(wrong[:5])}. Pass "
            "the modules that the run was trained with"
        )


def _read_schema(folder: Path, facts: ModelFacts) -> StoreSchema | None:
    if facts.schema_digest is None:
        return None
    schema = read_store_schema(folder)
    if schema.digest() != facts.schema_digest:
        raise ConfigError(
            f"{folder / SCHEMA_FILE}: this is not the schema of model {facts.name}; "
            "export the run again"
        )
    return schema

"""The model of a simulation: each party's part of it, from the modules that were trained in place.

It needs no run folder. A run over a network is exported instead (`export`), because no party has
the modules of another one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from celu.config.job import Job
from celu.errors import ConfigError, ModelError
from celu.label_map import LabelMap
from celu.model_identity import InputSpec, digest_weights, weights_of
from celu.party import Guest, Host
from celu.result import Result
from celu.serving.model import Model
from celu.serving.model_folder import ModelFacts, with_clip, z_clip_of


def models_of(
    result: Result, job: Job, guest: Guest, hosts: Mapping[str, Host]
) -> dict[str, Model]:
    """Each party's part of the model that `celu.simulate` trained, by name, for `celu.predict`.

    The modules are not copied, and are set to evaluation mode. Raises ConfigError for other
    parties, ModelError if a module's weights changed since the result.
    """
    if set(hosts) != set(job.hosts):
        raise ConfigError(f"hosts: expected {sorted(job.hosts)} as in the job, got {sorted(hosts)}")
    parties: dict[str, Guest | Host] = {job.guest: guest, **hosts}
    return {name: _part(name, party, job, result) for name, party in parties.items()}


def _part(name: str, party: Guest | Host, job: Job, result: Result) -> Model:
    top = party.top if isinstance(party, Guest) else None
    modules = {"bottom": party.bottom, "top": top}
    expected = result.model.weights.get(name)
    if isinstance(party, Guest):
        expected = result.own_weights or expected
    if digest_weights(weights_of(modules)) != expected:
        raise ModelError(
            f"{name}: expected the weights of model {result.model.name}, got others; was a module "
            "trained again?"
        )
    for module in modules.values():
        if module is not None:
            module.eval()
    facts = _facts(name, party, job, result)
    return Model(facts, with_clip(party.bottom, facts), top, None, _device(modules))


def _facts(name: str, party: Guest | Host, job: Job, result: Result) -> ModelFacts:
    rows = party.train
    inputs = {} if party.bottom is None else rows.inputs
    specs = {key: InputSpec.of(tensor) for key, tensor in inputs.items()}
    return ModelFacts(
        party=name,
        role="guest" if isinstance(party, Guest) else "host",
        guest=job.guest,
        hosts={host: terms.z_width for host, terms in job.hosts.items()},
        identity=result.model,
        inputs={key: spec.numbered_columns(key) for key, spec in specs.items()},
        input_specs=specs,
        sizes={key: [int(size) for size in rows.sizes[key]] for key in inputs if key in rows.sizes},
        z_width=None if isinstance(party, Guest) else job.hosts[name].z_width,
        bottom=None,
        top=None,
        output=party.loss.prediction if isinstance(party, Guest) else None,
        label_map=result.label_map if isinstance(party, Guest) else LabelMap(),
        mean_z=result.mean_z if isinstance(party, Guest) else {},
        schema_digest=None,
        own_weights=result.own_weights if isinstance(party, Guest) else None,
        z_clip=None if isinstance(party, Guest) else z_clip_of(job),
    )


def _device(modules: Mapping[str, nn.Module | None]) -> torch.device:
    """The device of the first parameter; a party's modules are all on one."""
    for module in modules.values():
        for parameter in module.parameters() if module is not None else ():
            return parameter.device
    return torch.device("cpu")

"""Sizes of lazy modules, such as `nn.LazyLinear`, from one row: optimizers need weights that exist.

It does not create modules.
"""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

from celu.config.job import Job
from celu.engine.randomness import seed_step
from celu.models.user_code import call_bottom, call_top
from celu.party import Guest, Host

_USE = -1  # no training step draws the same random numbers


def initialize_lazy_modules(name: str, party: Guest | Host, job: Job) -> None:
    """Let a party's lazy modules see a row, and zeros for Z of hosts; raises ModelError.

    Other modules are left as they are. The weights depend on (seed, party) only.
    """
    top = party.top if isinstance(party, Guest) else None
    modules = [module for module in (party.bottom, top) if module is not None]
    lazy = [p for module in modules for p in module.parameters() if is_lazy(p)]
    if not lazy:
        return
    device = lazy[0].device
    seed_step(job.seed, name, 0, _USE)
    for module in modules:
        module.eval()
    own = []
    with torch.no_grad():
        if party.bottom is not None:
            row = party.train.take(slice(0, 1)).to(device)
            own.append(call_bottom(name, party.bottom, row.inputs))
        if top is not None:
            zeros = [torch.zeros(1, host.z_width, device=device) for host in job.hosts.values()]
            call_top(name, top, [*own, *zeros])
    for module in modules:
        module.train()

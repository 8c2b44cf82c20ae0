"""Seeds for the randomness inside modules, such as dropout."""

from __future__ import annotations

import hashlib

import torch


def seed_step(seed: int, party: str, round_: int, use: int, slice_: int = 0) -> None:
    """Seed torch for one forward pass: use number `use` of a slice of a round's batch at a party.

    The bits of a run then do not depend on which parties share a process, and any step can be
    replayed.
    """
    step = f"{seed}/{party}/{round_}/{use}" + (f"/{slice_}" if slice_ else "")
    key = hashlib.blake2b(step.encode(), digest_size=8).digest()
    value = int.from_bytes(key, "little") >> 1
    # Not torch.manual_seed, which probes for every kind of accelerator on each call.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(value)

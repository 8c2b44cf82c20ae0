"""How the ranks of one attempt find each other in a store that survives attempts.

torchrun may keep its store when it restarts the ranks, with the addresses that ranks of an earlier
attempt left there, and the number of restarts differs between machines. So the first rank names the
attempt, once it has seen a new nonce of every other rank, and each confirms that its own is there.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Protocol

from celu.errors import RankLost

_POLL_S = 0.02
_PREFIX = "celu/meeting"


class Store(Protocol):
    """What this module needs of `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None:
        """Store a value."""
        ...

    def get(self, key: str) -> bytes:
        """The value of a key, which exists."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Whether all keys exist."""
        ...


def meet(store: Store, rank: int, size: int, timeout_s: float) -> str:
    """The name of this attempt, the same at all its ranks; raises RankLost at the deadline."""
    deadline, own = time.monotonic() + timeout_s, secrets.token_hex(16)
    others = [str(other) for other in range(1, size)]
    if rank > 0:
        store.set(f"{_PREFIX}/hello/{rank}", own)
    while time.monotonic() < deadline:
        if rank == 0:
            hellos = {other: _get(store, f"hello/{other}") for other in others}
            store.set(f"{_PREFIX}/attempt", json.dumps({"name": own, "hellos": hellos}))
            if all(_get(store, f"there/{other}") == own for other in others):
                return own
        elif (text := _get(store, "attempt")) is not None:
            attempt = json.loads(text)
            if attempt["hellos"].get(str(rank)) == own:
                store.set(f"{_PREFIX}/there/{rank}", attempt["name"])
                return str(attempt["name"])
        time.sleep(_POLL_S)
    raise RankLost(
        f"rank {rank}: the other ranks of this party did not appear within {timeout_s:g} s; look "
        "at their output"
    )


def _get(store: Store, key: str) -> str | None:
    key = f"{_PREFIX}/{key}"
    return store.get(key).decode() if store.check([key]) else None

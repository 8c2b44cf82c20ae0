"""The files of one checkpoint: read, and compared with their checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from celu.checkpoint.disk import Disk
from celu.checkpoint.identity import RunIdentity
from celu.checkpoint.shards import Share, StoredShards, read_rows
from celu.checkpoint.tensors import load_tensors

TENSORS, STATE, SUMS = "tensors.safetensors", "state.json", "checksums"


class Content(NamedTuple):
    """What the files of a checkpoint hold, without its shards."""

    tensors: bytes
    identity: RunIdentity
    state: dict[str, Any]
    shards: StoredShards | None


def read_content(disk: Disk, folder: Path, round_: int, *, with_shards: bool) -> Content:
    """The content of a checkpoint; the digests of shards are compared if `with_shards`.

    Raises OSError or ValueError if it is damaged.
    """
    lines = disk.read(folder / SUMS).decode("ascii")
    files = {name: disk.read(folder / name) for name in (TENSORS, STATE)}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    if not lines.startswith(sums(digests)):
        raise ValueError(f"{SUMS} does not match the files beside it")
    try:
        content = json.loads(files[STATE])
    except RecursionError:
        raise ValueError(f"{STATE}: the JSON is nested too deeply") from None
    keys = {"round", "identity", "state"}
    if not isinstance(content, dict) or content.keys() - {"shards"} != keys:
        raise ValueError(f"{STATE}: expected a round, an identity and a state")
    if content["round"] != round_ or not isinstance(content["state"], dict):
        raise ValueError(f"{STATE}: expected the state of round {round_}")
    shards = StoredShards.from_json(content["shards"]) if "shards" in content else None
    if with_shards:
        for name in () if shards is None else shards.files:
            digest = hashlib.sha256()
            for part in disk.parts(folder / name):
                digest.update(part)
            digests[name] = digest.hexdigest()
        if lines != sums(digests):
            raise ValueError(f"{SUMS} does not match the files beside it")
    identity = RunIdentity.from_json(content["identity"])
    return Content(files[TENSORS], identity, content["state"], shards)


def read_share(folder: Path, content: Content, share: Share) -> dict[str, Tensor]:
    """All tensors of a checkpoint, of sharded ones the rows of a rank, whoever wrote them.

    Raises OSError, or ValueError for tensors with other numbers of rows.
    """
    found, whole = share.split(load_tensors(content.tensors))
    for name, tensor in sorted(whole.items()):  # the same error every time
        _has_share(name, len(tensor), share)
        found[name] = tensor[share.rank :: share.size].clone()
    if content.shards is not None:
        files = [folder / name for name in content.shards.files]
        for name, rows in sorted(content.shards.rows.items()):
            of = (share.rank, share.size) if _has_share(name, rows, share) else (0, 1)
            found[name] = read_rows(files, name, rows, *of)
    return found


def sums(digests: Mapping[str, str]) -> str:
    """The content of the file with checksums, in the format of `sha256sum -c`."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def _has_share(name: str, rows: int, share: Share) -> bool:
    """Whether a rank has a share of a tensor; raises ValueError for another number of rows."""
    expected = share.rows_of(name)
    if expected not in (None, rows):
        raise ValueError(f"{name}: expected {expected} rows in all, got {rows}")
    return expected is not None

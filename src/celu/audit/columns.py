"""A host's audit: what the guest could learn of the host's columns from the Z that it received."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from celu.audit.decoder import Column, recovered
from celu.audit.labels import MIN_ROWS
from celu.audit.recorder import Recorder
from celu.audit.result import Audit, ColumnLeak
from celu.audit.threads import one_thread

MAX_COLUMNS = 400
NOT_COVERED = (
    "Decoders that are not this network, rows outside the sample, and what columns say about each "
    "other are not covered: the shares are what this decoder found, not a bound.",
    "Columns that the bottom model does not use, and lists of codes (bags), are not measured.",
    "Z of held-out rows and of a served model reveals about as much of those rows; it is not "
    "measured by itself.",
)


def audit_columns(
    party: str,
    recorder: Recorder,
    inputs: Mapping[str, Tensor],
    sizes: Mapping[str, tuple[int, ...]],
    names: Mapping[str, Sequence[str]] | None = None,
) -> Audit:
    """Decode each column from Z; `inputs` are those of the sample's rows, by slot.

    `names` are the columns of each input; without them a column has its input's name and its
    number. The column of which most is recovered comes first.
    """
    started = time.perf_counter()
    exposed = recorder.is_exposed
    known_N = recorder.sample.is_known[exposed]
    columns = _columns(inputs, sizes, names or {}, exposed)
    notes: list[str] = []
    leaks: list[ColumnLeak] = []
    if len(columns) > MAX_COLUMNS:
        notes.append(f"the first {MAX_COLUMNS} of {len(columns)} columns are measured")
        columns = columns[:MAX_COLUMNS]
    if min(known_N.sum(), (~known_N).sum()) < MIN_ROWS:
        notes.append(
            f"expected at least {2 * MIN_ROWS} recorded rows to decode, got {len(known_N)}"
        )
    elif not columns:
        notes.append("there are no columns of numbers or categories to decode")
    else:
        seed = int(recorder.sample.random("decoder").integers(2**31))
        z_NED = recorder.exposures("z")[torch.from_numpy(exposed)]
        with one_thread():
            one = recovered(z_NED[:, 0].numpy(), columns, known_N, seed)
            every = one
            if int(recorder.counts.max()) > 1:
                every = recovered(z_NED.flatten(1).numpy(), columns, known_N, seed)
        leaks = [
            ColumnLeak(name=column.name, kind=column.kind, one=a, all=b)
            for column, a, b in zip(columns, one, every, strict=True)
        ]
        leaks.sort(key=lambda leak: -max(leak.one or 0.0, leak.all or 0.0))
    return Audit(
        party=party,
        rows=int(exposed.sum()),
        exposures=int(recorder.counts.max()) if len(exposed) else 0,
        seconds=round(time.perf_counter() - started, 3),
        columns=leaks,
        notes=notes,
        not_covered=list(NOT_COVERED),
    )


def _columns(
    inputs: Mapping[str, Tensor],
    sizes: Mapping[str, tuple[int, ...]],
    names: Mapping[str, Sequence[str]],
    exposed: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> list[Column]:
    found = []
    for name, rows in inputs.items():
        if rows.dim() > 2:
            continue
        values_NC = rows.reshape(len(rows), -1).double().cpu().numpy()[exposed]
        titles = names.get(name, ())
        for number in range(values_NC.shape[1]):
            title = titles[number] if number < len(titles) else f"{name}[{number}]"
            is_category = name in sizes or rows.dtype == torch.int64
            kind: Literal["number", "category"] = "category" if is_category else "number"
            found.append(Column(title, kind, values_NC[:, number]))
    return found

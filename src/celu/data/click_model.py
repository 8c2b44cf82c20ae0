"""The hidden model of the made-up clicks: which ids a field draws, and what they do to the label.

Everything drawn is 32 raw random bits looked up in a table that the seed alone determines, so the
rows hold no transcendental function whose last bit depends on the processor, and NumPy's raw
streams are stable across versions. It draws no rows (`clicks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from celu.errors import DataError

Shape = Literal["criteo", "avazu"]
Floats = npt.NDArray[np.float32]
Column = npt.NDArray[np.float32] | npt.NDArray[np.int32]

MAX_CODES = 100_000

# A place of its own for the hidden model's randomness, apart from that of every chunk.
_MODEL_STREAM = 0xC11C
_CELLS = 1 << 16
_LATENT = 2

# Number of distinct ids in the public sets. The largest are cut to `max_codes`, as a preparation
# with a frequency threshold cuts them; code 0, the most frequent, stands for missing and rare.
_CRITEO_COUNTS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
_CRITEO_HOST = {f"C{i}": count for i, count in enumerate(_CRITEO_COUNTS, start=1)}
_AVAZU_HOST = {
    "hour": 240, "C1": 7, "banner_pos": 7, "site_id": 4737, "site_domain": 7745,
    "site_category": 26, "app_id": 8552, "app_domain": 559, "app_category": 36,
    "device_id": 2686408, "device_ip": 6729486, "device_model": 8251, "device_type": 5,
    "device_conn_type": 4,
}  # fmt: skip
_AVAZU_COUNTS = (2626, 8, 9, 435, 4, 68, 172, 60)
_AVAZU_GUEST = {f"C{i}": count for i, count in enumerate(_AVAZU_COUNTS, start=14)}
_CRITEO_NUMBERS = tuple(f"I{i}" for i in range(1, 14))


@dataclass(frozen=True)
class _Recipe:
    """How strong each part of the hidden model is: deviations of the logit, and the click rate."""

    rate: float
    guest: float
    host: float
    cross: float
    # The fields that carry latent vectors. Few, of few ids: else the crossing cannot be learned.
    crossing: frozenset[str]


_RECIPES = {
    "criteo": _Recipe(
        rate=0.25,
        guest=0.95,
        host=0.90,
        cross=0.80,
        crossing=frozenset({"I2", "I6", "I11", "C6", "C14", "C22"}),
    ),
    "avazu": _Recipe(
        rate=0.17,
        guest=0.90,
        host=0.80,
        cross=0.75,
        crossing=frozenset({"C15", "C18", "banner_pos", "device_conn_type"}),
    ),
}


@dataclass(frozen=True)
class Field:
    """Tables of one field: the codes that each cell of 1/65536 probability holds, and their part.

    A cell spans `width` codes from `first` on, equally likely. Codes index `effect`, the rows of
    `latent` (none where the field takes no part in the crossing) and `value` (numeric fields).
    """

    first: npt.NDArray[np.uint32]
    width: npt.NDArray[np.uint32]
    effect: Floats
    latent: tuple[Floats, ...]
    value: Floats | None

    def draw(self, bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
        """Return a code for each 32 bits: the upper half finds the cell, the lower the code."""
        cell = bits >> np.uint32(16)
        within = ((bits & np.uint32(0xFFFF)) * self.width.take(cell)) >> np.uint32(16)
        return (self.first.take(cell) + within).astype(np.intp)


@dataclass(frozen=True)
class Hidden:
    """The model that gives the labels. Its deviations are those of the logit, by part."""

    guest: dict[str, Field]
    host: dict[str, Field]
    intercept: np.float32


def field_sizes(shape: Shape, *, max_codes: int = MAX_CODES) -> dict[str, dict[str, int]]:
    """Return {"guest" | "host": {id column: number of codes}}; numeric columns have none."""
    if not 10 <= max_codes <= 1_000_000:
        raise DataError(f"max_codes must lie between 10 and 1000000, got {max_codes}")
    if shape not in _RECIPES:
        raise DataError(f"click data has the shapes {', '.join(_RECIPES)}; got {shape!r}")
    guest, host = ({}, _CRITEO_HOST) if shape == "criteo" else (_AVAZU_GUEST, _AVAZU_HOST)
    return {
        "guest": {name: min(size, max_codes) for name, size in guest.items()},
        "host": {name: min(size, max_codes) for name, size in host.items()},
    }


def draw_and_score(
    hidden: Hidden, streams: Iterator[np.random.SeedSequence], rows: int
) -> tuple[dict[str, Column], dict[str, Column], Floats]:
    """Return the guest's columns, the host's columns and the logits of freshly drawn rows."""
    logit = np.full(rows, hidden.intercept, np.float32)
    parties: list[dict[str, Column]] = []
    latents: list[Floats] = []
    for fields in (hidden.guest, hidden.host):
        columns: dict[str, Column] = {}
        latent_KB = np.zeros((_LATENT, rows), np.float32)
        for name, field in fields.items():
            codes = field.draw(raw_bits(next(streams), rows))
            logit += field.effect.take(codes)
            for k, table in enumerate(field.latent):
                latent_KB[k] += table.take(codes)
            if field.value is not None:
                columns[name] = field.value.take(codes)
            else:
                columns[name] = codes.astype(np.int32)
        parties.append(columns)
        latents.append(latent_KB)
    # Added dimension by dimension: a library's inner product may add in another order elsewhere.
    for k in range(_LATENT):
        logit += latents[0][k] * latents[1][k]
    return parties[0], parties[1], logit


@lru_cache(maxsize=4)
def hidden_model(shape: Shape, seed: int, max_codes: int) -> Hidden:
    """Return the model of a seed; its intercept is set so that the click rate is as it should."""
    sizes = field_sizes(shape, max_codes=max_codes)
    recipe = _RECIPES[shape]
    own = np.random.SeedSequence(seed, spawn_key=(_MODEL_STREAM,))
    numbers = dict.fromkeys(_CRITEO_NUMBERS if shape == "criteo" else (), 0)
    guest = _fields(sizes["guest"] | numbers, recipe.guest, recipe, own)
    host = _fields(sizes["host"], recipe.host, recipe, own)
    streams = iter(own.spawn(len(guest) + len(host)))
    _, _, logit = draw_and_score(Hidden(guest, host, np.float32(0)), streams, _CELLS)
    low, high = -10.0, 10.0
    for _ in range(30):
        middle = (low + high) / 2
        rate = float(np.mean(1 / (1 + np.exp(-(logit.astype(np.float64) + middle)))))
        low, high = (middle, high) if rate < recipe.rate else (low, middle)
    # Rounded, so that another processor's exponential gives the same intercept.
    return Hidden(guest, host, np.float32(round(low, 3)))


def _fields(
    sizes: dict[str, int], main: float, recipe: _Recipe, own: np.random.SeedSequence
) -> dict[str, Field]:
    """Draw a party's tables, its effects of deviation `main` in all; size 0 is a numeric field."""
    # The inner product of K dimensions has deviation sqrt(K) * scale**2 * fields of a party.
    num_crossing = len(recipe.crossing & sizes.keys())
    scale = np.sqrt(recipe.cross / np.sqrt(_LATENT) / num_crossing)
    share = 0.5 + _uniform(own, len(sizes))
    share *= main / np.sqrt(np.sum(share**2))
    fields = {}
    for weight, (name, size) in zip(share, sizes.items(), strict=True):
        value: Floats | None = None
        if size:
            first, width = _zipf_cells(size, exponent=1.1 + 0.3 * _uniform(own, 1)[0])
            effects_KN = np.stack([_uniform(own, size) - 0.5 for _ in range(1 + _LATENT)])
        else:
            first = np.arange(_CELLS, dtype=np.uint32) >> np.uint32(4)
            width = np.ones_like(first)
            value, effects_KN = _numeric(own, num_codes=_CELLS >> 4)
        num = effects_KN.shape[1]
        # How often a code is drawn: what its cells give it, as differences at their ends.
        ends = np.bincount(first, 1 / width, num + 1)
        ends -= np.bincount(first + width, 1 / width, num + 1)
        chance_N = np.cumsum(ends)[:num] / _CELLS
        effects_KN -= (effects_KN @ chance_N)[:, None]
        effects_KN /= np.sqrt(effects_KN**2 @ chance_N)[:, None]
        latent = tuple((scale * effects_KN[1:]).astype(np.float32))
        fields[name] = Field(
            first=first,
            width=width,
            effect=(weight * effects_KN[0]).astype(np.float32),
            latent=latent if name in recipe.crossing else (),
            value=value,
        )
    return fields


def _zipf_cells(
    size: int, *, exponent: float
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return the first code and the number of codes of each cell under Zipf's law."""
    mass = np.cumsum((np.arange(size) + 2.0) ** -exponent)
    edges = np.arange(_CELLS + 1) / _CELLS * mass[-1]
    first = np.searchsorted(mass, edges[:-1], side="right")
    last = np.minimum(np.searchsorted(mass, edges[1:], side="left"), size - 1)
    return first.astype(np.uint32), (last - first + 1).astype(np.uint32)


def _numeric(
    own: np.random.SeedSequence, *, num_codes: int
) -> tuple[Floats, npt.NDArray[np.float64]]:
    """Return log(count + 1) by quantile, 0 where missing, and its effects before scaling."""
    middle, spread, gap, bend, *signs = _uniform(own, 4 + _LATENT)
    missing = 0.4 * gap
    u = (np.arange(num_codes) + 0.5) / num_codes
    known = np.maximum((u - missing) / (1 - missing), 1e-9)
    # Counts of a log-logistic law: small ones mostly, and a long tail.
    count = np.floor(np.exp(4 * middle + (0.5 + 0.5 * spread) * np.log(known / (1 - known))))
    value = np.log1p(np.where(u < missing, 0, count))
    z = np.clip((value - value.mean()) / value.std(), -3, 3)
    # The label bends with the value; the crossing takes it as it is, up to a sign.
    effects = [np.sign(bend - 0.5) * z + (bend - 0.5) * z**2]
    effects += [np.where(sign < 0.5, -1, 1) * z for sign in signs]
    return value.astype(np.float32), np.stack(effects)


def _uniform(own: np.random.SeedSequence, num: int) -> npt.NDArray[np.float64]:
    """Return numbers in (0, 1) from the next stream of the hidden model."""
    raw = np.random.PCG64(own.spawn(1)[0]).random_raw(num)
    return ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


@lru_cache(maxsize=1)
def log_odds() -> Floats:
    """Return log(u / (1 - u)) for the middle u of each cell."""
    u = (np.arange(_CELLS) + 0.5) / _CELLS
    return np.log(u / (1 - u)).astype(np.float32)


def raw_bits(stream: np.random.SeedSequence, num: int) -> npt.NDArray[np.uint32]:
    """Return 32 random bits a row; a shorter draw is a prefix of a longer one."""
    words = np.random.PCG64(stream).random_raw((num + 1) // 2)
    # Little-endian whatever the machine, so that the halves come in one order everywhere.
    return words.astype("<u8", copy=False).view("<u4")[:num].astype(np.uint32, copy=False)

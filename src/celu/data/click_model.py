"""The hidden model of the synthetic clicks: how ids are drawn, and their effect on the label.

Every value is looked up, by 32 raw random bits, in a table that depends on the seed alone. So rows
are equal on every machine: NumPy's raw streams are stable across versions, and no row needs a
transcendental function, whose last bit varies with the CPU. `clicks` makes the datasets.
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

# The spawn key of the hidden model's random stream, distinct from those of the chunks.
_MODEL_STREAM = 0xC11C
_CELLS = 1 << 16
_LATENT = 2  # dimensions of a latent vector

# Number of distinct ids in the public datasets. The largest are limited to `max_codes`, as a
# frequency threshold would; code 0, the most frequent, is for missing and rare ids.
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
    """The click rate, and the standard deviation of each term of the logit."""

    rate: float
    guest: float
    host: float
    cross: float
    # The fields with latent vectors. They are few and have few ids: otherwise their interaction is
    # too hard to learn.
    interacting: frozenset[str]


_RECIPES = {
    "criteo": _Recipe(
        rate=0.25,
        guest=0.95,
        host=0.90,
        cross=0.80,
        interacting=frozenset({"I2", "I6", "I11", "C6", "C14", "C22"}),
    ),
    "avazu": _Recipe(
        rate=0.17,
        guest=0.90,
        host=0.80,
        cross=0.75,
        interacting=frozenset({"C15", "C18", "banner_pos", "device_conn_type"}),
    ),
}


@dataclass(frozen=True)
class Field:
    """Tables of one field: the codes of each cell of probability 1/65536, and their effects.

    A cell holds `width` equally likely codes, starting at `first`. Codes index `effect`, the rows
    of `latent` (empty for a field without interaction) and `value` (numeric fields).
    """

    first: npt.NDArray[np.uint32]
    width: npt.NDArray[np.uint32]
    effect: Floats
    latent: tuple[Floats, ...]
    value: Floats | None

    def draw(self, bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
        """Return a code for each 32 bits: the upper half selects the cell, the lower the code."""
        cell = bits >> np.uint32(16)
        within = ((bits & np.uint32(0xFFFF)) * self.width.take(cell)) >> np.uint32(16)
        return (self.first.take(cell) + within).astype(np.intp)


@dataclass(frozen=True)
class HiddenModel:
    """The model that generates the labels."""

    guest: dict[str, Field]
    host: dict[str, Field]
    intercept: np.float32


def field_sizes(shape: Shape, *, max_codes: int = MAX_CODES) -> dict[str, dict[str, int]]:
    """Return {"guest" | "host": {id column: number of codes}}; numeric columns have none."""
    if not 10 <= max_codes <= 1_000_000:
        raise DataError(f"max_codes: expected 10 to 1000000, got {max_codes}")
    if shape not in _RECIPES:
        raise DataError(f"shape: expected one of {', '.join(_RECIPES)}, got {shape!r}")
    guest, host = ({}, _CRITEO_HOST) if shape == "criteo" else (_AVAZU_GUEST, _AVAZU_HOST)
    return {
        "guest": {name: min(size, max_codes) for name, size in guest.items()},
        "host": {name: min(size, max_codes) for name, size in host.items()},
    }


def draw_and_score(
    hidden: HiddenModel, streams: Iterator[np.random.SeedSequence], rows: int
) -> tuple[dict[str, Column], dict[str, Column], Floats]:
    """Draw rows: return the guest's columns, the host's columns and the logits."""
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
    # Summed dimension by dimension: the order of a library's inner product depends on the machine.
    for k in range(_LATENT):
        logit += latents[0][k] * latents[1][k]
    return parties[0], parties[1], logit


@lru_cache(maxsize=4)
def hidden_model(shape: Shape, seed: int, max_codes: int) -> HiddenModel:
    """Return the model of a seed, with the intercept that gives the click rate of the recipe."""
    sizes = field_sizes(shape, max_codes=max_codes)
    recipe = _RECIPES[shape]
    stream = np.random.SeedSequence(seed, spawn_key=(_MODEL_STREAM,))
    numbers = dict.fromkeys(_CRITEO_NUMBERS if shape == "criteo" else (), 0)
    guest = _fields(sizes["guest"] | numbers, recipe.guest, recipe, stream)
    host = _fields(sizes["host"], recipe.host, recipe, stream)
    streams = iter(stream.spawn(len(guest) + len(host)))
    _, _, logit = draw_and_score(HiddenModel(guest, host, np.float32(0)), streams, _CELLS)
    low, high = -10.0, 10.0
    for _ in range(30):
        middle = (low + high) / 2
        rate = float(np.mean(1 / (1 + np.exp(-(logit.astype(np.float64) + middle)))))
        low, high = (middle, high) if rate < recipe.rate else (low, middle)
    # Rounded, so that the last bit of a CPU's exponential does not change it.
    return HiddenModel(guest, host, np.float32(round(low, 3)))


def _fields(
    sizes: dict[str, int], main: float, recipe: _Recipe, stream: np.random.SeedSequence
) -> dict[str, Field]:
    """Draw a party's tables; `main` is the deviation of the sum of effects, size 0 is numeric."""
    # The inner product of K dimensions has deviation sqrt(K) * scale**2 * num_interacting.
    num_interacting = len(recipe.interacting & sizes.keys())
    scale = np.sqrt(recipe.cross / np.sqrt(_LATENT) / num_interacting)
    share = 0.5 + _uniform(stream, len(sizes))
    share *= main / np.sqrt(np.sum(share**2))
    fields = {}
    for weight, (name, size) in zip(share, sizes.items(), strict=True):
        value: Floats | None = None
        if size:
            first, width = _zipf_cells(size, exponent=1.1 + 0.3 * _uniform(stream, 1)[0])
            effects_KN = np.stack([_uniform(stream, size) - 0.5 for _ in range(1 + _LATENT)])
        else:
            first = np.arange(_CELLS, dtype=np.uint32) >> np.uint32(4)
            width = np.ones_like(first)
            value, effects_KN = _numeric(stream, num_codes=_CELLS >> 4)
        num = effects_KN.shape[1]
        # The probability of each code: summed over its cells, from differences at their ends.
        ends = np.bincount(first, 1 / width, num + 1)
        ends -= np.bincount(first + width, 1 / width, num + 1)
        probability_N = np.cumsum(ends)[:num] / _CELLS
        effects_KN -= (effects_KN @ probability_N)[:, None]
        effects_KN /= np.sqrt(effects_KN**2 @ probability_N)[:, None]
        latent = tuple((scale * effects_KN[1:]).astype(np.float32))
        fields[name] = Field(
            first=first,
            width=width,
            effect=(weight * effects_KN[0]).astype(np.float32),
            latent=latent if name in recipe.interacting else (),
            value=value,
        )
    return fields


def _zipf_cells(
    size: int, *, exponent: float
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return the first code and the number of codes of each cell, under Zipf's law."""
    mass = np.cumsum((np.arange(size) + 2.0) ** -exponent)
    edges = np.arange(_CELLS + 1) / _CELLS * mass[-1]
    first = np.searchsorted(mass, edges[:-1], side="right")
    last = np.minimum(np.searchsorted(mass, edges[1:], side="left"), size - 1)
    return first.astype(np.uint32), (last - first + 1).astype(np.uint32)


def _numeric(
    stream: np.random.SeedSequence, *, num_codes: int
) -> tuple[Floats, npt.NDArray[np.float64]]:
    """Return log(count + 1) by quantile, 0 where missing, and its effects before scaling."""
    middle, spread, gap, bend, *signs = _uniform(stream, 4 + _LATENT)
    missing = 0.4 * gap
    u = (np.arange(num_codes) + 0.5) / num_codes
    known = np.maximum((u - missing) / (1 - missing), 1e-9)
    # Counts are log-logistic: mostly small, with a long tail.
    count = np.floor(np.exp(4 * middle + (0.5 + 0.5 * spread) * np.log(known / (1 - known))))
    value = np.log1p(np.where(u < missing, 0, count))
    z = np.clip((value - value.mean()) / value.std(), -3, 3)
    # The main effect is quadratic in the value; the interaction is linear, up to a sign.
    effects = [np.sign(bend - 0.5) * z + (bend - 0.5) * z**2]
    effects += [np.where(sign < 0.5, -1, 1) * z for sign in signs]
    return value.astype(np.float32), np.stack(effects)


def _uniform(stream: np.random.SeedSequence, num: int) -> npt.NDArray[np.float64]:
    """Return numbers in (0, 1) from the next stream of the hidden model."""
    raw = np.random.PCG64(stream.spawn(1)[0]).random_raw(num)
    return ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


@lru_cache(maxsize=1)
def log_odds() -> Floats:
    """Return log(u / (1 - u)) for the middle u of each cell."""
    u = (np.arange(_CELLS) + 0.5) / _CELLS
    return np.log(u / (1 - u)).astype(np.float32)


def raw_bits(stream: np.random.SeedSequence, num: int) -> npt.NDArray[np.uint32]:
    """Return 32 random bits for each row; a shorter draw is a prefix of a longer one."""
    words = np.random.PCG64(stream).random_raw((num + 1) // 2)
    # Little-endian on every machine, so that the halves are in the same order.
    return words.astype("<u8", copy=False).view("<u4")[:num].astype(np.uint32, copy=False)

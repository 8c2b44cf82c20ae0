"""The schemas of the paper's click data, for its two parties; equal to a `schema.toml`.

Criteo is tab-separated without a header, Avazu is CSV with one. Categories are hashed into the same
number of buckets by default, so no vocabulary is fitted.
"""

from __future__ import annotations

from collections.abc import Callable

from celu.config.columns import Category, Number
from celu.config.schema import ROW_NUMBER, RawSchema, Source, Split

HASHED = Category(buckets=100_000)
CRITEO_NUMBERS = tuple(f"I{number}" for number in range(1, 14))
CRITEO_CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
AVAZU_GUEST = tuple(f"C{number}" for number in range(14, 22))
AVAZU_HOST = (
    "hour",
    "C1",
    "banner_pos",
    "site_id",
    "site_domain",
    "site_category",
    "app_id",
    "app_domain",
    "app_category",
    "device_id",
    "device_ip",
    "device_model",
    "device_type",
    "device_conn_type",
)


def criteo(split: Split, category: Category = HASHED) -> dict[str, RawSchema]:
    """Guest: the label and 13 numbers. Host: 26 categories. The id of a row is its number."""
    names = ["label", *CRITEO_NUMBERS, *CRITEO_CATEGORIES]
    source = Source(format="tsv", names=names)
    number = Number(missing=0.0, log=True)
    guest = RawSchema(
        id=ROW_NUMBER,
        label="label",
        split=split,
        source=source,
        numbers=dict.fromkeys(CRITEO_NUMBERS, number),
    )
    return {"guest": guest, "host": _host(ROW_NUMBER, split, source, CRITEO_CATEGORIES, category)}


def avazu(split: Split, category: Category = HASHED) -> dict[str, RawSchema]:
    """Guest: the label and 8 anonymous categories. Host: 14 categories of site, app and device."""
    source = Source(format="csv")
    guest = RawSchema(
        id="id",
        label="click",
        split=split,
        source=source,
        categories=dict.fromkeys(AVAZU_GUEST, category),
    )
    return {"guest": guest, "host": _host("id", split, source, AVAZU_HOST, category)}


def _host(
    row_id: str, split: Split, source: Source, names: tuple[str, ...], category: Category
) -> RawSchema:
    categories = dict.fromkeys(names, category)
    return RawSchema(id=row_id, split=split, source=source, categories=categories)


Preset = Callable[[Split, Category], dict[str, RawSchema]]
PRESETS: dict[str, Preset] = {"criteo": criteo, "avazu": avazu}

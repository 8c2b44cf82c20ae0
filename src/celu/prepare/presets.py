"""The click data of the paper, as its two parties hold it: what `schema.toml` would say.

Criteo is tab-separated without a line of names, Avazu is CSV with one. Categories are hashed, each
onto the same number of codes: so a store is made in one scan, and new rows need no vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

from celu.config.schema import ROW_NUMBER, Category, Declared, Number, Source, Split

HASHED = Category(buckets=100_000)  # for any number of rows and values
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


def criteo(split: Split, category: Category = HASHED) -> dict[str, Declared]:
    """Guest: the label and 13 numbers. Host: 26 categories. Rows have no id but their number."""
    names = ["label", *CRITEO_NUMBERS, *CRITEO_CATEGORIES]
    source = Source(format="tsv", names=names)
    number = Number(missing=0.0, log=True)
    guest = Declared(
        id=ROW_NUMBER,
        label="label",
        split=split,
        source=source,
        numbers=dict.fromkeys(CRITEO_NUMBERS, number),
    )
    return {"guest": guest, "host": _host(ROW_NUMBER, split, source, CRITEO_CATEGORIES, category)}


def avazu(split: Split, category: Category = HASHED) -> dict[str, Declared]:
    """Guest: the label and 8 anonymous categories. Host: the 14 that say where and on what."""
    source = Source(format="csv")
    guest = Declared(
        id="id",
        label="click",
        split=split,
        source=source,
        categories=dict.fromkeys(AVAZU_GUEST, category),
    )
    return {"guest": guest, "host": _host("id", split, source, AVAZU_HOST, category)}


def _host(
    row_id: str, split: Split, source: Source, names: tuple[str, ...], category: Category
) -> Declared:
    categories = dict.fromkeys(names, category)
    return Declared(id=row_id, split=split, source=source, categories=categories)


Preset = Callable[[Split, Category], dict[str, Declared]]
PRESETS: dict[str, Preset] = {"criteo": criteo, "avazu": avazu}

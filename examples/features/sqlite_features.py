"""A host's current features from a database, for `celu serve`.

In party.toml, beside this file:

    [serve]
    lookup = "sqlite_features:Features"

The table `features` has a column `id` and one for each raw column of the model's schema. The path
of the database is in the environment variable FEATURES_DB.
"""

import os
import sqlite3
from typing import Any


class Features:
    def __init__(self) -> None:
        # Asks arrive on the thread of the link, one at a time.
        self._database = sqlite3.connect(os.environ["FEATURES_DB"], check_same_thread=False)
        self._database.row_factory = sqlite3.Row

    def lookup(self, ids: list[str]) -> list[dict[str, Any] | None]:
        marks = ",".join("?" * len(ids))
        found = self._database.execute(
            f"SELECT * FROM features WHERE id IN ({marks})",  # noqa: S608 - only question marks
            ids,
        )
        rows = {row["id"]: dict(row) for row in found}
        return [rows.get(row_id) for row_id in ids]

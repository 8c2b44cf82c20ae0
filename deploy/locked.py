"""Prints the requirements of requirements.lock that are in a report of `pip install --dry-run`."""

import json
import re
import sys
from pathlib import Path


def plain(name: str) -> str:
    """The name of a package as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(lock: str, report: str) -> str:
    """The entries, with their hashes, of packages that pip would install."""
    wanted = {plain(one["metadata"]["name"]) for one in json.loads(report)["install"]}
    entries = re.findall(r"^\S+==\S+ \\(?:\n    .*)+", lock, re.M)
    return "\n".join(entry for entry in entries if plain(entry.split("==")[0]) in wanted)


if __name__ == "__main__":
    sys.stdout.write(locked(Path("requirements.lock").read_text(), Path(sys.argv[1]).read_text()))

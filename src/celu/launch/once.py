"""Options that torchrun passes again whenever it restarts the ranks, and that must apply once.

What an option did is recorded in `launch.json` in the run folder, with the name of the launch. It
does not make the name: `ranks/group.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from celu.run_folder import RunFolder

FILE = "launch.json"


class AppliedOptions:
    """The options that one launch of torchrun has applied; without a launch, none yet."""

    def __init__(self, folder: RunFolder, launch: str | None) -> None:
        self._folder = folder
        self._launch = launch
        self._applied: dict[str, int] = {}
        with suppress(OSError, ValueError, TypeError, KeyError):  # none, or one of another launch
            content = json.loads((folder.path / FILE).read_text(encoding="utf-8"))
            if launch is not None and content["launch"] == launch:
                self._applied = {str(name): int(n) for name, n in content["applied"].items()}

    def once(self, option: str, apply: Callable[[], int]) -> int:
        """What an option results in; it is applied unless this launch did so before a restart.

        Raises CheckpointError if that cannot be recorded.
        """
        if option not in self._applied:
            self._applied[option] = apply()
            if self._launch is not None:
                content = {"launch": self._launch, "applied": self._applied}
                self._folder.write(FILE, json.dumps(content, indent=2) + "\n")
        return self._applied[option]

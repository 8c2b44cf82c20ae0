"""Options that torchrun passes again whenever it restarts the ranks, and that must apply once.

What an option did is recorded in `launch.json` in the run folder, with the name of the launch. It
does not make the name: `ranks/group.py` does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pydantic import ValidationError

from celu.config.reading import Settings
from celu.run_folder import RunFolder

FILE = "launch.json"
_MAX_BYTES = 1 << 16


class _Launch(Settings):
    """A launch of torchrun, and what each option resulted in."""

    launch: str
    applied: dict[str, int] = {}


class AppliedOptions:
    """The options that one launch of torchrun has applied; without a launch, none yet."""

    def __init__(self, folder: RunFolder, launch: str | None) -> None:
        self._folder = folder
        self._launch = launch
        self._applied: dict[str, int] = {}
        if launch is None:
            return
        with suppress(OSError, ValidationError):  # there is none, or it is damaged
            with (folder.path / FILE).open("rb") as file:
                found = _Launch.model_validate_json(file.read(_MAX_BYTES))
            if found.launch == launch:
                self._applied = dict(found.applied)

    def once(self, option: str, apply: Callable[[], int]) -> int:
        """What an option results in; it is applied unless this launch did so before a restart.

        Raises CheckpointError if that cannot be recorded.
        """
        if option not in self._applied:
            self._applied[option] = apply()
            if self._launch is not None:
                content = _Launch(launch=self._launch, applied=self._applied)
                self._folder.write(FILE, content.model_dump_json(indent=2) + "\n")
        return self._applied[option]

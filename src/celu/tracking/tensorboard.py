"""TensorBoard: event files in `tensorboard/` of the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celu.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class TensorBoard:
    """Writes TensorBoard's files; see `Backend`. Raises ConfigError if the package is missing."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "tracking: the package tensorboard is not installed; "
                'install it with: pip install "celu[tensorboard]"'
            ) from error
        self._open_writer = SummaryWriter
        self._folder = folder / FOLDER
        self._title = name
        self._settings = settings
        self._writer: SummaryWriter | None = None

    def open(self, round_: int) -> None:
        """See `Backend`; drops the rounds that an earlier attempt wrote and this one repeats."""
        if self._writer is not None:
            self._writer.close()
        self._writer = self._open_writer(str(self._folder), purge_step=round_ + 1)
        if self._settings:
            rows = [f"| {name} | `{value}` |" for name, value in self._settings.items()]
            table = "\n".join(["| setting | value |", "|---|---|", *rows])
            self._writer.add_text(self._title, table, round_)

    def write(self, scalars: Mapping[str, float], round_: int) -> None:
        """See `Backend`."""
        assert self._writer is not None  # opened when training starts
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, round_)

    def close(self, succeeded: bool) -> None:
        """See `Backend`; the files do not say how the run ended."""
        assert self._writer is not None
        self._writer.close()

"""A matplotlib figure that notebooks show as an image, without pyplot and its global state."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class InlineFigure(Figure):
    """A figure with a PNG of itself for IPython."""

    def _repr_png_(self) -> bytes:
        """The figure as an image."""
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=80)
        return image.getvalue()

"""Checkpoints of a run: on disk, verified, and agreed on between the parties before they resume."""

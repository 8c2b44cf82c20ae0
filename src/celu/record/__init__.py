"""Reads run folders of finished, interrupted and running runs."""

"""Scores of a model in a file, and how good they are: metrics, intervals, comparisons, a page."""

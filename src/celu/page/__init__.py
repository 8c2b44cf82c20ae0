"""Shared parts of our HTML pages: a style sheet, charts, and the vendored uPlot. No build step."""

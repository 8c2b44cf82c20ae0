"""Builds the documentation: the repository's Markdown as HTML pages that open from disk."""

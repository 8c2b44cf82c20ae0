"""Builds the documentation: Markdown of this repository to HTML that opens from disk."""

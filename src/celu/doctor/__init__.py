"""Examining the link between two parties before a run: measuring, foreseeing, advising."""

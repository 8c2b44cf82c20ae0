"""Encoders, one for each column: fitted on the training rows, then applied to all rows."""

"""A self-contained HTML report of one or more runs, made from their folders."""

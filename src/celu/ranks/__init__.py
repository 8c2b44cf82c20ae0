"""A party that computes every batch in slices: on several ranks of torchrun, or in one process."""

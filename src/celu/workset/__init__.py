"""The workset table with its sampling and weighting policies (paper, section 3)."""

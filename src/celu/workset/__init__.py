"""The workset table and the two policies that draw from it (paper, section 3)."""

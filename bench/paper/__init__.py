"""`scripts/bench paper`: the tables and figures of the paper's section 5, and more variants."""

"""The workset table with its sampling and weighting policies (paper, section 3).

`workset`: a party's workset: the table, its policies, and counters for reports
`table`: the W newest exchanged batches, each with two clocks
`sampling`: which cached batch the next local step uses
`weighting`: the weight of each row of a stale batch
`gpu_similarity`: how far rows have turned and moved, on a GPU: one Triton kernel
"""

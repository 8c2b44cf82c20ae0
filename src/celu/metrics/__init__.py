"""How good scores are: the metrics that training evaluations and `celu evaluate` share.

`names`: the metrics by name: which outputs they fit, and whether higher is better
`measure`: the formulas of all metrics, with row weights
`ranking`: the metrics of a ranking: AUC, average precision, KS
`own`: a user's own metric
`values`: the values that scores and labels may have
"""

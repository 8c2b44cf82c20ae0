"""Scores of a model in a file, and how good they are: metrics, intervals, comparisons, a page.

`layout`: the layout of a scores file, and its checks
`file`: writes and reads a scores file
`classes`: labels as codes of the classes that a model was trained on
`rows`: rows to evaluate: scores and labels joined by id from files
`arrays`: rows to evaluate that are passed as arrays
`evaluation`: metrics with intervals, by slice, and in comparison with another model
`bootstrap`: confidence intervals by a bootstrap over rows
`tables`: calibration bins, deciles and curves
`result`: the result of an evaluation: figures only, never an id
`page`: the page of an evaluation
"""

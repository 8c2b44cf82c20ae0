"""Results in notebooks: tables and figures.

`table`: a table of facts as HTML
`curves`: the curves of a run's evaluations
`figure`: a matplotlib figure that notebooks show as an image
"""

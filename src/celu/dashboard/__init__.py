"""Live runs in a browser: a server on this machine that reads one party's own run folders.

`live`: a run that is followed live: a snapshot, and updates since then
`metrics`: metrics of runs in the Prometheus text format
`routes`: the HTTP routes: the page, its files, a stream of updates, metrics
`server`: the HTTP server, in a thread of `celu run` or of `celu dashboard`
"""

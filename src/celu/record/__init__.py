"""Reads run folders of finished, interrupted and running runs.

`run`: reads a run folder, for reports, the dashboard and the doctor
`settings`: the settings in a run folder that readers use
`tail`: reads events from a file that may still grow
`compaction`: which events of a long run a live view retains in memory
`series`: chart series of a run: each point has a round, seconds and bytes
`downsample`: fewer points for a chart of the same shape
`timeline`: what each party did in some rounds, on one clock
`summary`: a run as a few numbers, and its notable events as text
`recent`: statistics of a run's most recent rounds
`folders`: opens several run folders, each with a short unique label
"""

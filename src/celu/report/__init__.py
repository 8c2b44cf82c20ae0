"""A self-contained HTML report of one or more runs, made from their folders.

`content`: the content of a report as JSON; `report.js` lays it out
`comparison`: the scores of a run compared with those of the guest alone
`clocks`: clock offsets between the parties, estimated from their messages
`render`: a report's page
"""

"""`celu doctor`: measure the link between two parties before a run, estimate rounds, advise.

`diagnosis`: the session: compare contracts and versions, and measure the links
`measure`: the steps of a measurement: the guest leads and the host answers
`probes`: series of messages that are timed where they arrive
`measurement`: what was measured, and the validation of a peer's numbers
`estimate`: the bytes and seconds of a job's rounds over a measured link
`machine`: facts about this machine: TCP settings, and the dates of certificates
`facts`: the facts about one link, from which rules derive findings
`party_rules`: rules about contracts, versions, certificates and clocks
`link_rules`: rules about the link
`advice`: rules about the job, and the list of all rules
`live_rules`: rules about a run in progress
"""

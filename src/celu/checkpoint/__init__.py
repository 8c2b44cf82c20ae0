"""Checkpoints of a run: on disk, verified, and agreed on between the parties before they resume.

`generations`: a run's checkpoints on disk: one folder for each, of which the newest few stay
`content`: the files of one checkpoint, compared with their checksums
`tensors`: tensors to and from safetensors, in parts so that a large model is not copied
`shards`: tensors of which each rank of a party has some rows: one file a rank
`identity`: the run that a folder belongs to, and its contract
`agreement`: the round from which all parties resume
`writer`: runs the jobs that write checkpoints, on a thread or inline
`disk`: the file operations that checkpoints need
"""

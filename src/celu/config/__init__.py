"""Settings files of every kind, validated before anything starts.

`reading`: TOML in, a frozen typed value out, or an error that names the key
`job`: `job.toml`, the contract that all parties hold and compare
`optimizer`: `[optimizer]` of `job.toml`
`privacy`: `[privacy]` of `job.toml`, and a party's own in `party.toml`
`job_toml`: writes a job as `job.toml`
`replay`: `replay.toml`: the job of a run with `auto`, with its choices fixed
`space`: `space.toml`: the settings that `celu tune` varies
`party`: `party.toml`: one party's private settings
`class_weights`: the weights of classes in the training loss, in `party.toml`
`audit`: `[audit]` of `party.toml`
`serve`: `[serve]` of `party.toml`
`serving`: `serving.toml`: how trained models are used, identical at all parties
`columns`: the declarations of feature columns, and the values fitted on them
`schema`: the columns of raw files (`schema.toml`) and of a store (`schema.json`)
`link`: an emulated network link, and named profiles
`templates`: settings files for the data that celu writes
"""

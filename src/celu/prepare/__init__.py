"""Prepares stores from raw files, and splits one table among several parties.

`draft`: drafts a `schema.toml` from a raw file, with a reason for each guess
`guessing`: guesses what a raw column is, from the values of some of its rows
`pipeline`: from raw files to stores
`passes`: its two passes: rows are spilled to disk by tag, then sorted and written
`raw_file`: a raw file as blocks of typed columns
`text_format`: the format of a raw file, and what separates its fields
`delimited`: reads CSV and TSV as Arrow arrays
`parquet`: reads Parquet as Arrow arrays
`parsing`: parses cells as numbers; its errors quote no cell
`number_text`: how numbers are written as text: decimal character, thousands, units
`encoders`: one encoder for each column
`hashing`: a stable hash of strings, for whole arrays
`id_warnings`: warns of ids that were probably altered on their way
`new_store`: a store that is being prepared
`spill`: rows spilled to disk by bucket, and read back one bucket at a time
`prefetch`: runs a generator in a thread, one item ahead
`presets`: the schemas of Criteo and Avazu, for two parties
`split`: splits one raw table among several parties
"""

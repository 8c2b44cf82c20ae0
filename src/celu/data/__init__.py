"""A party's rows: stores, alignments, datasets, batches and their order; two example datasets.

`dataset`: a party's rows as tensors
`arrays`: converts tensors, NumPy arrays and pandas columns to the tensors of a dataset
`table`: converts a pandas DataFrame or an Arrow table to the inputs of a dataset
`tags`: hashes of row ids, the same at all parties
`order`: the order of rows, which every party derives from (seed, epoch)
`batch_loader`: training batches by round, of which the next are gathered in a thread
`store`: prepared rows in Parquet files, one for each part, and their schema
`gate`: checks every row of a store before training
`inputs`: which columns of a store each input of a bottom model has
`memory_map`: a store's rows as memory-mapped tensors, for stores larger than memory
`row_stream`: rows of a store, read once and in order
`row_ids`: the ids of a store's rows, in the order of a dataset
`labelled_rows`: the labelled rows that a guest's rows are taken from
`alignment`: the rows of a store that all parties hold, in the common order
`shards`: ranges of tags that are aligned one by one, and merged
`folder`: creates a folder completely or not at all
`parquet_footer`: the sizes that a Parquet file declares for its columns
`parquet_sizes`: refuses small Parquet files that declare gigabytes
`decoded_text`: decodes a column of text, unless a small file declares gigabytes of it
`flights`: flights from New York in 2013 as the data of two parties
`clicks`: synthetic click data in the shapes of Criteo and Avazu
`click_model`: how these clicks are drawn
"""

"""A party's rows: stores, alignments, datasets, batches and their order; two example datasets."""

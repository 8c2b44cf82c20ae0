"""Encoders, one for each column: fitted on the training rows, then applied to all rows.

`encoder`: the interface: converts a raw column to the columns of a store
`numbers`: fill missing values, then log, then standardise, as declared
`filling`: what replaces missing values
`statistics`: statistics of a column's training rows, updated block by block
`quantiles`: numbers as codes of ranges with about equally many training rows
`categories`: values as codes, by hash or from a vocabulary
`bags`: cells with several values, as lists of codes
`dates`: dates and times as numbers
`labels`: labels as classes or as numbers
`weights`: weights of rows
"""

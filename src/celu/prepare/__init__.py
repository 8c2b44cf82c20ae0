"""From raw files to stores: reading, learning, sorting, writing; and cutting one table in parts."""

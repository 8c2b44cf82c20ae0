"""Private set intersection: find the rows that all parties have, without revealing the others."""

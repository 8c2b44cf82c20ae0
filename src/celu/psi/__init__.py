"""Private set intersection: find the rows that all parties have, without revealing the others.

`protocol`: an alignment: set intersections between the guest and each host
`exchange`: one party's half of the intersection with one peer
`selection`: which of the rows in common with a host all other hosts have
`state`: the progress of an exchange on disk, so that it can resume
`answered`: how many ids of a peer were answered, and how many may be
`group`: the group in which ids are blinded, P-256 or Curve25519
`curve`: byte strings as points of P-256
`curve25519`: byte strings as points of Curve25519
`workers`: processes for the curve multiplications, so that they use all cores
"""

"""What protects a party's data from its peers: randomized labels, noise, and what was spent.

`randomized_response`: labels that may differ from the true ones, and how to learn from them
`ledger`: what hosts have received of a guest's labels, as a sum of epsilons
`secret_key`: a party's secret keys, in files that only their owner can read
`secret_noise`: normal numbers that only the owner of a key can know
`row_noise`: noise on the rows of Z or dZ
`accountant`: what Gaussian noise on Z guarantees for one row
"""

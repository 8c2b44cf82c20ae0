"""The training engine: exchange rounds, local steps and the order in which a party runs them."""

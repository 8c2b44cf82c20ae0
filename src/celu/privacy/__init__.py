"""What protects a party's data from its peers: randomized labels, and what was spent on them."""

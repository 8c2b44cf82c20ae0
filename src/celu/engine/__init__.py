"""The exchange, the local step and the order in which a party does them."""

"""Messages between two parties, and the carriers that transport them."""

"""Messages between two parties: what they are, and the carriers that bring them across."""

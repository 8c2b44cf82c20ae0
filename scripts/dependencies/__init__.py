"""The pinned packages: their hashes (`lock`) and their known vulnerabilities (`audit`)."""

"""Benchmarks of speed and quality: `scripts/bench NAME --out DIR`."""

"""Prepares stores from raw files, and splits one table among several parties."""

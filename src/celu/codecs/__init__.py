"""Codecs that compress Z and dZ: one small class each, selected by name in the contract."""

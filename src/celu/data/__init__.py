"""A party's rows: reading them, agreeing on their order, and the embedded sets."""

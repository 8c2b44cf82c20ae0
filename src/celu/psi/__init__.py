"""Which rows the parties have in common, found without showing anybody the others."""

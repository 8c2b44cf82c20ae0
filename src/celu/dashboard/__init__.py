"""Runs as they go on, in a browser: a server on this machine, of one party's own folders."""

"""Live runs in a browser: a server on this machine that reads one party's own run folders."""

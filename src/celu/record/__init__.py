"""Reading run folders: of runs that are done, were interrupted, or are going on."""

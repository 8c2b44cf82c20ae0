"""What is kept of a run, so that it can go on after a crash: generations, identity, agreement."""

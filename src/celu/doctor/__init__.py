"""`celu doctor`: measure the link between two parties before a run, estimate rounds, advise."""

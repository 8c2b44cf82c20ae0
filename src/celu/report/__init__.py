"""One HTML file about any number of runs, made from their folders."""

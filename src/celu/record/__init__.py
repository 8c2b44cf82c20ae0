"""Reading run folders: of finished, interrupted and running runs."""

"""Settings files (job, party, schema), validated before anything starts."""

"""The two settings files of a run, validated before anything starts."""

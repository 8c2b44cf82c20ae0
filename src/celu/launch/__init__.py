"""From settings files to a running party: loading, connecting, training, aligning, diagnosing."""

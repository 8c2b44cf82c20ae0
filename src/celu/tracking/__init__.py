"""Experiment trackers, fed by a run's events: TensorBoard, MLflow, Weights & Biases."""

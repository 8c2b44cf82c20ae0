"""Experiment trackers, fed by a run's events: TensorBoard, MLflow, Weights & Biases.

`tracker`: the callback that sends a run's metrics to a tracker, on a thread
`tensorboard`: event files in `tensorboard/`
`mlflow`: a database in `mlflow/`, or a server
`wandb`: offline files in `wandb/`
`run_id`: a tracker's id of a run, so that a resumed run continues it
"""

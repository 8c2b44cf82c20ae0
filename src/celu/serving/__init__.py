"""Trained models in use: export, prediction and serving."""

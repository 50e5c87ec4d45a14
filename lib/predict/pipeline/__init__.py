"""Predictions for pipelines: schedules and their times, partitions, and versions of the weights."""

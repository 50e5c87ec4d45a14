"""Predictions for sequence parallelism: what ranks compute, send and keep of a long sequence."""

"""Predictions for data parallelism: steps, buckets, compression and parameter servers."""

"""Predictions for tensor parallelism: what ranks keep and send when they share a product."""

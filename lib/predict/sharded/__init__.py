"""Sharded data parallelism, predicted: bytes, traffic, time, offload, and figures of others."""

"""Predictions: the bytes, memory and time of a run, computed before any rank starts."""

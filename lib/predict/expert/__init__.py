"""Predictions for mixture of experts: what is sent, and how the load spreads."""

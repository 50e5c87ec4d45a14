"""Predictions for collectives: their plans, their bytes and their times."""

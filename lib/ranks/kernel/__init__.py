"""What runs in the notebook: calls on the ranks, their processes, and what is told of a failure."""

"""What a rank knows of itself while it runs: its board, its names, its GPU, its threads."""

"""Chapter 5, tensor parallelism on grids: its exercises, its lessons and its cover."""

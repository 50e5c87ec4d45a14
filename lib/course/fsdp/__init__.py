"""Chapter 3, FSDP: its exercises, its lessons, its measured experiments and its cover."""

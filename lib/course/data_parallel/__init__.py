"""Chapter 1, data parallelism: its exercises, its lessons, its programs with bugs and its cover."""

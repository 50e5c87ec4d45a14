"""Chapter 7, asynchronous pipelines: its lessons, its exercises and its cover."""

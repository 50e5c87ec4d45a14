"""Chapter 2, communicating less: its lessons, its exercises and its cover."""

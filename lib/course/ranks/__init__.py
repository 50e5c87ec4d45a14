"""Chapter 0, ranks and collectives: its exercises and its cover."""

"""Chapter 6, pipeline bubbles: its exercises, its tables of schedules and its cover."""

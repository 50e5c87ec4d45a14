"""Training with numbers of fewer bits: what is rounded, when, and what keeps it from being lost."""

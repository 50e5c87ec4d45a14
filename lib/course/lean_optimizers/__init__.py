"""Chapter 11: lean optimizers, which keep fewer numbers for each weight."""

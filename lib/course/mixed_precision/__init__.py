"""Chapter 10: mixed precision, which computes and keeps numbers in fewer bits."""

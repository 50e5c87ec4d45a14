"""What numbers of fewer bits cost and save: the bytes that are kept and sent."""

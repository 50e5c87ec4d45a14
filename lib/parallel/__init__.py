"""Floor 3: the methods. Each takes a plain model and a group, and knows nothing of the others."""

"""A model of PyTorch's caching allocator, and a recorded step that is replayed through it."""

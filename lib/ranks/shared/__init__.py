"""What the notebook and its ranks both use: the notice board, events, folders, failures."""

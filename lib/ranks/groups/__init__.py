"""Inside a rank: how process groups are made, connected and ended."""

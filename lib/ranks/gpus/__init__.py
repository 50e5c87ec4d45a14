"""Which GPUs this machine has, who has taken them, and where the ranks of a World are placed."""

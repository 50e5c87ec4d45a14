"""Ranks that a launcher such as torchrun or SLURM started."""

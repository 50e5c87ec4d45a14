"""The parts of pictures of plans: what each rank holds after each round, and where it stands."""

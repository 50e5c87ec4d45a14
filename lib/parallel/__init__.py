"""Floor 3: parallel methods, which take a plain model and a group and import no other family."""

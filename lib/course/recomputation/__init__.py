"""Chapter 9: recomputation, which forgets activations in forward and computes them again."""

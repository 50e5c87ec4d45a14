"""A training step in fp32, TF32, half precision and fp8, predicted, and what others measured."""

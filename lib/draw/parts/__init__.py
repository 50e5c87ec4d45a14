"""What all pictures are made of: marks, pixels, style, and the living side."""

"""The README: its picture."""

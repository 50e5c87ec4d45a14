"""Checks of exercises, used by all chapters: they run the reader's code and explain the result."""

"""The book as pages: what Sphinx is told, and what the pages have that its theme has not."""

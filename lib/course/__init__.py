"""Floor 5: the course itself, with checks of exercises, tools, and a folder for each chapter."""

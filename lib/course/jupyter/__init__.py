"""What `make lab` starts: the page of the course, how to reach it, and how it ends."""

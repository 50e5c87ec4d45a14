"""Floor 5: what a reader touches besides the pictures: the book's list, the checkers, the road."""

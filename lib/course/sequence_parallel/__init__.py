"""What chapter 12 needs beside the library: its cover, its lessons and its exercises."""

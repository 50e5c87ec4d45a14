"""What chapter 8 needs beside the library: its cover, its lessons and its exercises."""

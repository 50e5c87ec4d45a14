from lib.draw import guess

size = guess("Four ranks hold 1,000,000 bytes each. How many bytes does rank 0 send?", unit="bytes")
size.reveal(3_000_000)

from lib.draw import guess

guess("Four ranks hold 1,000,000 bytes each. How many bytes does rank 0 send?", unit="bytes")

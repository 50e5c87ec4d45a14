from lib.draw import units

names = ["embed", *(str(n) for n in range(1, 7)), "head"]
units([262_000_000, *[100_000_000] * 6, 262_000_000], 0.01, names=names)

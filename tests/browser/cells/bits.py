from lib.draw import bits

bits(0.3, "e4m3", "e5m2")

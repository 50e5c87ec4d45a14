from lib.draw import partition
from lib.predict.pipeline.cuts import equal, exact

layers = [3, 1, 1, 1, 1, 1, 1, 6]
cuts = ("equal", equal(layers, 4)), ("exact", exact(layers, 4))
partition(layers, *cuts, names=["embed", "1", "2", "3", "4", "5", "6", "head"], unit="")

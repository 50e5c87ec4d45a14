from lib.draw import shards

shards("2d")

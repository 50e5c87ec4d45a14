from lib.draw import blocks
from lib.ledger.lives import Life
from lib.predict.allocator.replay import replay

MIB, lives, event = 2**20, [], 0
for _ in range(6):  # one tensor is kept, two larger ones live for a moment
    for size, kind in ((9, "other"), (2, "activations"), (9, "other")):
        lives.append(Life(len(lives), size * MIB, kind, event, made_by="mm in forward"))
        event += 1
    for n in (-3, -1):
        lives[n].died = event
        event += 1

blocks({"best fit": replay(lives), "an arena": replay(lives, arena=["activations"])})

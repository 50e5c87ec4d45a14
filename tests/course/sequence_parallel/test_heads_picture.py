"""The picture of Ulysses' all_to_all: every block is where the real exchange puts it."""

import torch
import torch.distributed as dist

from lib.course.sequence_parallel import heads_picture as picture
from lib.ranks import World, collectives


def swapped():
    """Give what rank r has after the exchange: of each block, the tokens and the heads."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    blocks = torch.tensor([10.0 * rank + heads for heads in range(ranks)])
    return collectives.all_to_all(blocks.view(1, ranks, 1, 1), 1, 2).flatten().int().tolist()


def test_a_block_has_the_colour_of_the_rank_that_holds_it():
    every = [(tokens, heads) for tokens in range(4) for heads in range(4)]
    with World(4, device="cpu") as world:
        held = world.run(swapped)
    for rank, blocks in enumerate(held):
        drawn = [10 * t + h for t, h in every if picture.holder("after", t, h) == rank]
        assert sorted(blocks) == drawn and len(drawn) == 4


def test_the_words_of_a_block_name_the_other_rank():
    texts = {
        side: [mark.text for mark in picture.matrix(side, 0) if mark.align == "middle"]
        for side in ("before", "after")
    }
    assert texts["before"][:4] == ["stays", "→ 1", "→ 2", "→ 3"]
    assert texts["after"][:4] == ["stays", "← 0", "← 0", "← 0"]
    assert all(words.count("stays") == 4 for words in texts.values())

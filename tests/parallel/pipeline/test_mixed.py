"""Stages by channel and mixed: the gradients of the whole model, and the predicted bytes."""

from unittest import mock

import pytest
import torch

from lib import RankError
from lib.parallel.pipeline.mixed import MixedPipeline
from lib.predict.pipeline.cuts import Partition
from lib.predict.pipeline.shared_stages.channels import conv_traffic, gpt_traffic
from lib.predict.shape import GPTShape, MLPShape
from lib.single.batches import Batches
from lib.single.convnet import ConvNet
from lib.single.models import GPT, MLP, Chain
from lib.single.train import mean_squares, next_token_loss
from tests.every import every

SHAPE = GPTShape(layers=2, width=16, heads=4, sequence=8)  # 4 blocks
GROUPED = GPTShape(width=16, heads=4, layers=2, sequence=8, kv_heads=2, positions="rotary")
TEXT = Batches(4, sequence=8)[0]
torch.manual_seed(0)
IMAGES = torch.randn(4, 4, 8, 8).double(), torch.randn(4, 12).double()
ROWS = torch.randn(4, 8).double(), torch.randn(4, 4).double()


def gpt():
    return GPT(SHAPE).double()


def grouped():
    return GPT(GROUPED).double()


def convnet():
    return ConvNet((4, 8, 16), 8, 12).double()


def frozen():
    model = convnet()
    model.blocks["1"].requires_grad_(False)
    return model


def mlp():
    return MLP(MLPShape((8, 8, 16, 8, 4))).double()


MODELS = {
    "gpt": (gpt, TEXT, next_token_loss),
    "grouped": (grouped, TEXT, next_token_loss),
    "conv": (convnet, IMAGES, mean_squares),
    "frozen": (frozen, IMAGES, mean_squares),
    "mlp": (mlp, ROWS, mean_squares),
}


def stepped(name, text, m=2):
    """On each rank: the loss, and by name the gradient and the weight after a step of SGD."""
    make, batch, loss = MODELS[name]
    pipeline = MixedPipeline(make(), Partition.read(text), m, loss=loss)
    value = pipeline.step(*batch).item()
    gradients = {k: None if g is None else g.clone() for k, g in pipeline.gradients().items()}
    torch.optim.SGD([p for p in pipeline.parameters() if p.requires_grad], 0.1).step()
    after = {k: w.detach() for k, w in pipeline.module.named_parameters()}
    return value, gradients, after, pipeline.stage


def on_one_device(name):
    make, batch, loss = MODELS[name]
    model = make()
    value = loss(model(batch[0]), batch[1])
    value.backward()
    gradients = {k: w.grad for k, w in model.named_parameters()}
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1).step()
    return value.item(), gradients, {k: w.detach() for k, w in model.named_parameters()}


def assembled(shares, whole):
    """Put the ranks' shares of a tensor side by side; equal tensors are one."""
    if shares[0].shape == whole.shape:
        assert every(torch.allclose(share, shares[0], rtol=1e-12) for share in shares)
        return shares[0]
    dim = next(d for d in range(whole.dim()) if shares[0].shape[d] != whole.shape[d])
    return torch.cat(shares, dim)


def compare(answers, name):
    loss, *expected = on_one_device(name)
    seen = set()
    for stage in {answer[3] for answer in answers}:
        ranks = [answer for answer in answers if answer[3] == stage]
        assert every(answer[0] == pytest.approx(loss, rel=1e-12) for answer in ranks)
        for which, whole in enumerate(expected, 1):
            for key in ranks[0][which]:
                shares = [answer[which][key] for answer in ranks]
                seen.add(key)
                if shares[0] is None:
                    assert whole[key] is None
                    continue
                found = assembled(shares, whole[key])
                assert torch.allclose(found, whole[key], rtol=1e-9, atol=1e-12), key
    assert seen == set(expected[0])


CASES = [
    ("gpt", "0:4 /2"), ("gpt", "0:4 /4"), ("gpt", "0:2 /2 | 2:4 /2"), ("gpt", "0:1 | 1:3 /2 | 3:4"),
    ("grouped", "0:4 /2"), ("grouped", "0:1 | 1:3 /2 | 3:4"),
    ("conv", "0:3 /2"), ("conv", "0:3 /4"), ("conv", "0:2 /2 | 2:3"),
    ("conv", "0:1 | 1:3 /2"), ("conv", "0:2 | 2:3 /3"), ("frozen", "0:2 /2 | 2:3 /2"),
    ("mlp", "0:4 /4"), ("mlp", "0:1 | 1:4 /2"), ("mlp", "0:2 | 2:4"), ("mlp", "0:4"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), CASES)
def test_shared_stages_give_the_gradients_of_the_whole_model(worlds, name, text):
    ranks = sum(stage.ranks for stage in Partition.read(text).stages)
    compare(worlds(ranks).run(stepped, name, text), name)


SUMS = [("gpt", "0:4 /2", "all_reduce"), ("gpt", "0:4 /2", "reduce_scatter_single"),
        ("conv", "0:3 /2", "reduce_scatter_single")]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "left_out"), SUMS)
def test_without_the_sums_the_gradients_are_wrong(worlds, name, text, left_out):
    """The gradient of a layer's input is a sum over ranks: without it nothing before is right."""

    def broken():
        def nothing(*tensors, group=None):
            if left_out == "reduce_scatter_single":
                tensors[0].copy_(tensors[1].chunk(2)[0])

        with mock.patch(f"lib.parallel.pipeline.channels.dist.{left_out}", nothing):
            return stepped(name, text)

    with pytest.raises(AssertionError):
        compare(worlds(2).run(broken), name)


LEDGERS = [
    ("gpt", "0:4 /2"), ("gpt", "0:2 /2 | 2:4 /2"), ("gpt", "0:1 | 1:3 /2 | 3:4"), ("gpt", "0:4 /4"),
    ("grouped", "0:4 /2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), LEDGERS)
def test_the_ledger_of_a_gpt_is_predicted(worlds, name, text):
    partition = Partition.read(text)
    ranks = sum(stage.ranks for stage in partition.stages)
    ledger = worlds(ranks).record(stepped, name, text)
    shape = GROUPED if name == "grouped" else SHAPE
    predicted = gpt_traffic(partition, shape, m=2, batch=2, sequence=8, itemsize=8)
    assert counted(ledger, ranks) == predicted


@pytest.mark.parametrize("text", ["0:3 /2", "0:1 | 1:3 /2", "0:2 /2 | 2:3 /2", "0:3 /4"])
def test_the_ledger_of_a_convnet_is_predicted(worlds, text):
    partition = Partition.read(text)
    ranks = sum(stage.ranks for stage in partition.stages)
    ledger = worlds(ranks).record(stepped, "conv", text)
    outputs = [2 * 8 * 4 * 4 * 8, 2 * 16 * 2 * 2 * 8, 2 * 12 * 8]  # bytes of a microbatch of two
    assert counted(ledger, ranks) == conv_traffic(partition, outputs, m=2)


def counted(ledger, ranks):
    """By rank: the number and bytes of its messages, and of the stage's collectives by name."""
    found = []
    for rank in range(ranks):
        rows = ledger.where(lane="comm", rank=rank)
        kinds = {}
        for row in rows:
            if row.op == "send" or row.group == "stage":
                count, nbytes = kinds.get(row.op, (0, 0))
                kinds[row.op] = count + 1, nbytes + row.bytes
        found.append(kinds)
    return found


def test_what_cannot_be_run_is_refused(worlds):
    world = worlds(2)

    def make(model, text):
        MixedPipeline(model(), Partition.read(text), 2)

    with pytest.raises(RankError, match="is for 2 ranks and 3 blocks, but the group has 2 ranks"):
        world.run(make, gpt, "0:3 /2")
    with pytest.raises(RankError, match="has 10 entries; 4 ranks cannot share them equally"):
        worlds(4).run(make, ConvNet, "0:3 /4")
    with pytest.raises(RankError, match="has replicas, which take turns"):
        world.run(make, gpt, "0:4 x2")
    with pytest.raises(RankError, match="Block 0 is a GELU, which cannot be shared by channel"):
        world.run(make, lambda: Chain({"0": torch.nn.GELU()}), "0:1 /2")
    with pytest.raises(RankError, match="are one weight, whose two uses need different shares"):
        world.run(make, lambda: GPT(GPTShape(layers=2, width=16, heads=4, tied=True)), "0:4 /2")
    with pytest.raises(RankError, match="blocks.1.attention has 1 heads; 2 ranks cannot"):
        world.run(make, lambda: GPT(GPTShape(layers=2, width=16, heads=1)), "0:4 /2")
    with pytest.raises(RankError, match="attention has 2 heads of keys; 4 ranks cannot share them"):
        worlds(4).run(make, grouped, "0:4 /4")
    with pytest.raises(RankError, match="dropout drops numbers at random, but each rank has"):
        world.run(make, lambda: GPT(GPTShape(layers=2, dropout=0.1)), "0:4 /2")

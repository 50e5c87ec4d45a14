"""What chapter 9 says beside its main numbers: of its recording, its model and autocast."""

import re
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    apply_activation_checkpointing,
)
from torch.utils.checkpoint import checkpoint as pytorchs
from torch.utils.flop_counter import FlopCounterMode

from lib.course.recomputation import lessons
from lib.course.tools.widgets import VIEW, data_of, states
from lib.predict.recompute import BlockCost, none, use_of
from lib.predict.recompute.published import FIGURE_7, MODELS
from lib.single import next_token_loss
from lib.single import recompute as recompute_package
from lib.single.recompute import kept_bytes, recompute
from tests.course.stored_chapter import chapter_fixtures, shown

notebook, text = chapter_fixtures("09-recomputation")


def test_the_scores_of_the_small_gpt_count_as_well(notebook, text):
    """With the early stop the operations grow by 24 %, and the recorded time by about a third."""
    inputs, targets = lessons.batch()
    counts = []
    for policy in ("none", "all"):
        model = recompute(lessons.gpt(), policy)
        with FlopCounterMode(display=False) as counter:
            next_token_loss(model(inputs), targets).backward()
        counts.append(counter.get_total_flops())
    assert round(100 * (counts[1] / counts[0] - 1)) == 24
    assert "so the operations grow by 24 % with the early stop" in text
    (cell,) = [c for c in notebook.cells if "everything = one.record" in c.source]
    (model_id,) = [out.data[VIEW]["model_id"] for out in cell.outputs if VIEW in out.data]
    (_, _, kept), (_, _, again) = data_of(states(notebook)[model_id])["runs"]
    assert again / kept - 1 == pytest.approx(1 / 3, abs=0.05)
    assert "The recorded step above grows by about a third all the same" in text


def test_the_mlp_of_the_opening_model_keeps_less_than_chapter_3s(text):
    """Chapter 3's layer keeps 41 bytes for each token and width, and a matrix and product more."""
    large = lessons.LARGE
    numbers = 2 * large.sequence * large.layers
    chapter_3 = round(41 * numbers / 2 * large.width / 1e9)
    mlp = round(2 * numbers * large.hidden / 1e9)
    now = round(use_of(none(34), lessons.large_costs()).peak / 1e9)
    words = f"It keeps {now} GB, not the {chapter_3} GB of chapter 3's activations"
    assert words in text and f"keeps {mlp} GB less, and the rest {now - chapter_3 + mlp} GB" in text


def test_our_checkpoint_keeps_the_inputs_of_13_blocks_outside_of_autograd(notebook, text):
    space, inputs, noted = {"torch": torch, "lessons": lessons}, lessons.batch()[0], []
    for words in ("def checkpoint(function, x)", "class Checkpointed"):
        (cell,) = [c for c in notebook.cells if words in c.source]
        exec(cell.source.split("\n\n\nprint")[0], space)
    ours, model = space["checkpoint"], space["Checkpointed"](lessons.gpt())

    def note(block, x):
        noted.append(weakref.ref(x))
        return ours(block, x)

    space["checkpoint"] = note
    logits = model(inputs)
    kept = [ref() for ref in noted]
    assert kept[0] is inputs and {x.nbytes for x in kept[1:]} == {131_072}
    assert sum(x.nbytes for x in kept[1:]) == 1_703_936 and logits.requires_grad
    assert "the inputs of 13 blocks, each 131,072 bytes, which are 1.7 MB instead of 38" in text
    assert kept_bytes(model, inputs) == 0 and "`kept_bytes` would show 0" in text


def test_forgetting_the_last_block_frees_nothing_at_the_peak(text):
    costs = [BlockCost(1, 14, 1.0)] * 6
    peak = lambda *again: use_of(tuple((n,) if n in again else n for n in range(6)), costs).peak
    assert peak(5) == peak() > peak(0) and peak(0, 1, 2) < peak(3, 4, 5)
    for pair in ((a, b) for b in range(6) for a in range(b)):
        assert peak(0, 1) <= peak(*pair)
    assert "of equal blocks with the earliest (the last one frees nothing at the peak)" in text


def test_pytorch_checkpoints_the_modules_that_are_chosen(text):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)))
    chosen = list(model)[:2]
    apply_activation_checkpointing(model, check_fn=lambda module: module in chosen)
    assert [isinstance(block, CheckpointWrapper) for block in model] == [True] * 2 + [False] * 2
    assert model[0].checkpoint_impl == CheckpointImpl.NO_REENTRANT
    assert "checkpoints only the modules that your `check_fn` chooses" in text


def test_the_first_operation_of_the_moody_function_is_told_as_number_1(notebook):
    """The detach of the checkpoint's own input is not counted."""
    told = " ".join(shown(notebook, "def moody").split())
    assert "The last operation before was number 1, aten.mean.default." in told
    (cell,) = [c for c in notebook.cells if "def moody" in c.source]
    printed = []
    space = {"torch": torch, "library": recompute_package, "lessons": lessons}
    exec(cell.source, space | {"print": printed.append})
    assert re.sub(r"\s+", " ", printed[0]).strip() == told


def test_autocast_is_forgotten_in_the_second_run(notebook, text):
    space = {"torch": torch}
    exec(next(c.source for c in notebook.cells if "def checkpoint(function, x)" in c.source), space)
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    theirs = partial(pytorchs, use_reentrant=False)
    message = "expected m1 and m2 to have the same dtype"
    assert f'"{message}"' in text
    runs = []
    block[0].register_forward_hook(lambda *_: runs.append(1))
    for call in (space["checkpoint"], recompute_package.checkpoint, theirs):
        x = torch.ones(3, 4, requires_grad=True)
        runs.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(lambda x: block(x).relu(), x)
        fails = pytest.raises(RuntimeError, match=message)
        with fails if call is space["checkpoint"] else nullcontext():
            y.float().sum().backward()
        assert len(runs) == 2  # the second run itself does not fail
    assert "that got float32 under `torch.autocast` fails in backward" in text


def test_the_formulas_beside_the_published_bars_give_them(text):
    words = "10 + (24 + s)/t in tensor parallelism, (34 + s)/t with sequence parallelism, "
    assert words + "10 + 24/t with *selective*, and 34/t with both" in text
    for name in ("22B", "175B", "530B"):
        large = MODELS[name]
        t, scores = large.ranks, 5 * large.heads * large.sequence / large.width
        alone = 10 + (24 + scores) / t
        for kept, bar in zip(((34 + scores) / t, 10 + 24 / t, 34 / t), FIGURE_7[name]):
            assert 100 * kept / alone == pytest.approx(bar, abs=0.1)

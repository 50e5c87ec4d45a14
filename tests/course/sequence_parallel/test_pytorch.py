"""What chapter 12 says of PyTorch's own methods: what they send, and where they are silent."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor.experimental import context_parallel as torch_cp
from torch.distributed.tensor.experimental._context_parallel._attention import (
    _cp_options as options,
)
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import scaled_dot_product_attention as by_name

from lib.course import plain_gpt
from lib.course.sequence_parallel import lessons, plan
from lib.parallel.sequence.torch_on_cpu import use_torch_context_parallel_on_cpu
from lib.ranks.mesh import mesh as mesh_of
from lib.single import GPT
from tests.course.stored_chapter import chapter_fixtures, shown

OPS = "reduce_scatter", "all_gather", "all_reduce"
notebook, text = chapter_fixtures("12-sequence-parallel")


def theirs(mesh, q, k, v, backward):
    """Attend as the chapter's cell does."""
    with torch_cp(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        return backward(out, leaves)


def test_pytorch_gathers_and_ours_sends_what_the_chapter_shows(notebook, worlds):
    run = worlds(4, device="cpu").record(lessons.ours_and_theirs, theirs)
    assert run.results == [True] * 4
    rows = lessons.side_by_side(run).splitlines()[1:]
    own = 2 * 4 * 8 * 8  # numbers of K and V of a rank
    expected = [("ours", 9, "send", 8 * own), ("PyTorch", 2, "all_gather", 4 * 8 * own),
                ("PyTorch", 4, "all_to_all", 4 * own)]  # fmt: skip
    words = [
        (name, int(n), op, int(b.replace(",", ""))) for name, n, _, op, b in map(str.split, rows)
    ]
    assert words == expected
    assert "\n".join(rows) in shown(notebook, "ours_and_theirs")


def test_the_plan_gathers_less_often_and_sums_no_gradients_in_backward(notebook, worlds):
    run = worlds(4, device="cpu").record(plan.ours_and_plan)
    assert run.results == [[True, True]] * 4
    table = lessons.side_by_side(run)
    assert table in shown(notebook, "plan.ours_and_plan")
    count = {(name, op): 0 for name in ("ours", "PyTorch") for op in OPS}
    for name, n, _, op, _ in map(str.split, table.splitlines()[1:]):
        count[name, op] += int(n)
    layers = plan.SHAPE.layers
    norms_and_biases = 6 * layers + 2  # two norms and two biases of a layer; the last norm
    matrices = 2 * layers + 1  # that gather their inputs: two of a layer, and the head
    assert (matrices, norms_and_biases) == (5, 14)
    assert count["ours", "reduce_scatter"] == count["PyTorch", "reduce_scatter"] == 2 * matrices
    assert count["ours", "all_gather"] == count["PyTorch", "all_gather"] + matrices
    of_loss = count["ours", "all_reduce"] - norms_and_biases
    assert of_loss == 2 and count["PyTorch", "all_reduce"] == 3


def split_by_the_plan() -> tuple[dict, str]:
    """Return how the plan leaves each gradient, and the error with learned positions."""
    tokens, targets = plain_gpt.batch(plan.SHAPE, lessons.SAMPLES)
    here = mesh_of(tp=dist.get_world_size()).torch()
    model = plan.split(GPT(plan.SHAPE).double(), here)
    with loss_parallel():
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    kinds = {name: p.grad.placements[0] for name, p in model.named_parameters()}
    try:
        plan.split(GPT(lessons.SHAPE).double(), here)(tokens)
    except RuntimeError as error:
        return {name: type(kind).__name__ for name, kind in kinds.items()}, str(error)


def test_the_plan_leaves_gradients_and_positions_as_the_text_says(worlds):
    kinds, error = worlds(4, device="cpu").run(split_by_the_plan)[0]
    norms = {name for name in kinds if "norm" in name}
    biases = {name for name in kinds if name.endswith(("proj.bias", "down.bias"))}
    assert (len(norms), len(biases)) == (10, 4)
    assert {kinds[name] for name in norms} == {"Partial"}
    assert {kinds[name] for name in biases} == {"Replicate"}
    assert "must match the size" in error


def switched_off_without_a_word() -> dict[str, bool | str]:
    """Try what PyTorch's context_parallel does without zigzag, its name or a causal mask."""
    use_torch_context_parallel_on_cpu()
    here, found = mesh_of(cp=2).torch(), {}
    tokens, odd = torch.arange(8).view(1, 8), torch.arange(6).view(1, 6)
    with torch_cp(here, buffers=[tokens], buffer_seq_dims=[1]):
        found["zigzag"] = tokens[0].tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]][dist.get_rank()]
    found["restored"] = tokens[0].tolist() == list(range(8))
    with torch_cp(here, buffers=[odd], buffer_seq_dims=[1]):
        found["contiguous"] = odd[0].tolist() == [[0, 1, 2], [3, 4, 5]][dist.get_rank()]
    parts = lessons.attention_inputs()
    with torch_cp(here, buffers=parts, buffer_seq_dims=[2, 2, 2]):
        alone = by_name(*parts, is_causal=True)
        with_others = F.scaled_dot_product_attention(*parts, is_causal=True)
        found["alone"] = bool((alone - with_others).abs().max() > 0.1)
        own = [part.clone() for part in parts]
        try:
            F.scaled_dot_product_attention(*parts)
        except RuntimeError as error:
            found["error"] = str(error)
    found["alone"] = found["alone"] and torch.allclose(alone, by_name(*own, is_causal=True))
    return found


def test_what_pytorch_does_not_tell_is_what_it_does(text, worlds):
    for found in worlds(2, device="cpu").run(switched_off_without_a_word):
        error = found.pop("error")
        assert f"*{error.replace('`', '')}*" in text
        assert found == dict.fromkeys(("zigzag", "restored", "contiguous", "alone"), True)


def test_the_sent_bytes_of_both_rings_are_those_of_the_folded_lines(text):
    ours, gathered, swapped = 9 * 4096, 2 * 16_384 * 3 // 4, 4 * 2048
    assert "its gradients travel in fp32 and ours in fp64" in text
    assert f"ours sends 9 · 4,096 = {ours:,} bytes" in text
    assert f"PyTorch 2 · {gathered // 2:,} + 4 · 2,048 = {gathered + swapped:,}." in text


def sums_in_fp64(mesh, q, k, v, backward):
    """Attend as the chapter's cell does, with gradients that travel in the dtype of q."""
    options.convert_to_f32 = False
    try:
        return theirs(mesh, q, k, v, backward)
    finally:
        options.convert_to_f32 = True


def in_bf16(mesh, q, k, v, backward):
    results = theirs(mesh, *(x.bfloat16() for x in (q, k, v)), backward)
    return [x.double() for x in results]


def sent_by_pytorch(world, attention) -> int:
    """Return the bytes that rank 0 sends when it attends to parts in PyTorch's way."""
    table = lessons.side_by_side(world.record(lessons.ours_and_theirs, attention))
    rows = [line.split() for line in table.splitlines()[1:] if line.startswith("PyTorch")]
    share = {"all_gather": 3 / 4, "all_to_all": 1}
    return sum(int(n) * share[op] * int(b.replace(",", "")) for _, n, _, op, b in rows)


def test_at_one_dtype_pytorch_sends_more_than_our_ring(text, worlds):
    world = worlds(4, device="cpu")
    assert sent_by_pytorch(world, theirs) == 32_768
    equal = sent_by_pytorch(world, sums_in_fp64)
    assert equal > 9 * 4096 and f"With fp64 for both it would send {equal:,.0f}." in text
    ours = 9 * 4096 / 4  # 2 bytes a number instead of 8
    assert sent_by_pytorch(world, in_bf16) / ours == 14 / 9
    assert "so it sends 14/9 of what ours sends." in text

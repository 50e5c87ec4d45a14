"""The whole state dict, read on another number of ranks; norms that count each number once."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.tensor import (
    assert_replicated,
    checksum,
    clip_grad_norm_,
    load_plain,
    plain_gradients,
    sequence_parallel,
    tensor_parallel,
    to_plain,
    vocab_parallel_cross_entropy,
)
from lib.predict.shape import GPTShape
from lib.ranks.mesh import mesh
from lib.single import GPT
from tests.parallel.tensor import models
from tests.parallel.tensor.steps import batches, trained


def written(name):
    return to_plain(tensor_parallel(models.gpt(name)))


def read(name, state):
    """Load a state dict into another model; the whole one again."""
    model = tensor_parallel(GPT(models.SHAPES[name]).double())
    load_plain(model, state)
    return to_plain(model)


@pytest.mark.parametrize("name", ["plain", "padded, tied", "two keys", "one key, rotary"])
def test_weights_move_to_another_number_of_ranks(worlds, name):
    expected = models.gpt(name).state_dict()
    state = worlds(4).run(written, name)[0]
    for ranks in (1, 2):
        for found in [state, *worlds(ranks).run(read, name, state)]:
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                assert torch.equal(found[key].to("cpu"), value), key


def misfit(change):
    model = tensor_parallel(models.gpt("padded"))
    state, before = to_plain(model), to_plain(model)
    change(state)
    try:
        load_plain(model, state)
    except ValueError as error:
        after = to_plain(model)
        assert all(torch.equal(after[key], before[key]) for key in before)
        return str(error)


def longer(state):
    state["blocks.0.tokens.weight"] = torch.zeros(50, 24)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("blocks.1.norm1.bias"), "lacks blocks.1.norm1.bias"),
        (lambda state: state.update(other=torch.zeros(1)), "has other, which the model lacks"),
        (longer, "blocks.0.tokens.weight of the state dict has the shape [50, 24]"),
    ],
)
def test_a_state_dict_that_does_not_fit_is_refused(worlds, change, words):
    for text in worlds(2).run(misfit, change):
        assert words in text


def clipped(name, norm_type):
    model = tensor_parallel(models.gpt(name))
    v = model.shape.vocabulary
    tokens, targets = models.batch(v)
    loss = vocab_parallel_cross_entropy(model(tokens), targets, vocabulary=v)
    loss.backward()
    norm = clip_grad_norm_(model, 0.01, norm_type)
    return norm.item(), plain_gradients(model)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("name", ["padded, tied", "two keys", "one key, rotary", "frozen"])
def test_norms_are_those_of_the_plain_model(world, name, norm_type):
    from lib.single import next_token_loss

    model = models.gpt(name)
    tokens, targets = models.batch(model.shape.vocabulary)
    next_token_loss(model(tokens), targets).backward()
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type).item()
    for norm, gradients in world.run(clipped, name, norm_type):
        assert norm == pytest.approx(expected, rel=1e-10)
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(gradients[key].to("cpu"), parameter.grad)


def counted_by_all():
    """Every rank's own norm of all that it has, summed: replicated parameters count twice."""
    model = tensor_parallel(models.gpt("plain"))
    tokens, targets = models.batch(48)
    vocab_parallel_cross_entropy(model(tokens), targets).backward()
    total = sum(p.grad.square().sum() for p in model.parameters())
    dist.all_reduce(total)
    return total.sqrt().item(), clip_grad_norm_(model, 1.0).item()


def test_counting_replicated_parameters_on_every_rank_gives_too_much(worlds):
    for wrong, right in worlds(2).run(counted_by_all):
        assert wrong > 1.01 * right


def diverging(steps):
    """A norm that one rank changes by the last digit, once; when a check says so."""
    model = tensor_parallel(GPT(GPTShape(vocabulary=48, sequence=12, width=24, layers=1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        tokens, targets = models.batch(48, step)
        optimizer.zero_grad()
        vocab_parallel_cross_entropy(model(tokens), targets).backward()
        optimizer.step()
        if step == steps - 2 and dist.get_rank() == 1:
            model.get_parameter("blocks.1.norm2.weight").data[3] += 1e-6
        if step == steps - 3:
            assert_replicated(model)
    try:
        assert_replicated(model)
    except AssertionError as error:
        return str(error)


def test_a_silent_divergence_after_a_hundred_steps_is_found_and_named(worlds):
    """A shipped bug: the ranks trained different models, and the loss told nobody."""
    for text in worlds(2).run(diverging, 100):
        assert "is not replicated any more: on rank 1 of the group it differs from rank 0" in text


def shared_key():
    """Two ranks share a key, and one of them changes it."""
    model = tensor_parallel(models.gpt("two keys"))
    assert_replicated(model)
    if dist.get_rank() == 3:
        model.get_parameter("blocks.2.attention.qkv.weight").data[-1] += 1
    try:
        assert_replicated(model)
    except AssertionError as error:
        return str(error)


def test_keys_that_neighbours_share_are_compared_too(worlds):
    text = "blocks.2.attention.qkv.weight is not replicated any more: on rank 3 of the group it"
    for found in worlds(4).run(shared_key):
        assert found.startswith(f"{text} differs from rank 2, by at most 1.")


def diverged_beside_others():
    """Two groups of two ranks with other models; a rank of the second one changes a norm."""
    here = mesh(dp=2, tp=2)
    model = tensor_parallel(GPT(models.SHAPE, seed=here["dp"].rank), here["tp"].group)
    assert_replicated(model)  # of its own group: the two groups differ
    if dist.get_rank() == 3:
        model.get_parameter("blocks.1.norm2.weight").data[3] += 1
    try:
        assert_replicated(model)
    except AssertionError as error:
        return str(error)


def test_a_model_is_compared_within_its_group(worlds):
    *same, one, two = worlds(4).run(diverged_beside_others)
    assert same == [None, None] and one == two
    assert one.startswith("blocks.1.norm2.weight is not replicated any more: on rank 1 of the")


def other_buffers():
    """A plain model, which nobody has split, with a buffer that differs."""
    model = torch.nn.BatchNorm1d(4)
    model.running_mean += dist.get_rank()
    try:
        assert_replicated(model)
    except AssertionError as error:
        return str(error)


def test_any_model_can_be_compared(worlds):
    assert worlds(2).run(other_buffers)[0].startswith("running_mean is not replicated any more")


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool]
)
def test_a_checksum_sees_one_bit(dtype):
    values = torch.zeros(5, 3, dtype=dtype)
    before = checksum(values.T)
    values[2, 1] = 1
    assert checksum(values.T) != before


def seeded(same):
    """Replicated dropout with one seed on all ranks, or with one on each."""
    model = tensor_parallel(models.gpt("dropout"), seed=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(7 if same else 7 + dist.get_rank())
    tokens, targets = models.batch(48)
    vocab_parallel_cross_entropy(model(tokens), targets).backward()
    optimizer.step()
    try:
        assert_replicated(model)
    except AssertionError as error:
        return str(error)


def test_dropout_on_replicated_tensors_needs_one_seed(worlds):
    assert worlds(2).run(seeded, True) == [None, None]
    assert all("is not replicated any more" in text for text in worlds(2).run(seeded, False))


def masks(seed, common):
    """What this rank drops of a split tensor: `common` is an ordinary dropout."""
    from lib.parallel.tensor import SplitDropout

    torch.manual_seed(3)
    full = torch.nn.Dropout(0.5)
    drop = full if common else SplitDropout(full, seed=seed)
    return drop(torch.ones(64)).tolist()


def test_each_rank_drops_others_of_a_split_tensor(worlds):
    torch.manual_seed(3)
    plain = torch.nn.functional.dropout(torch.ones(128), 0.5).tolist()
    one, two = worlds(2).run(masks, None, False)
    assert one + two == plain, "the plain model's own mask"
    one, two = worlds(2).run(masks, 5, False)
    assert one != two and set(one) == set(two) == {0.0, 2.0}
    one, two = worlds(2).run(masks, None, True)
    assert one == two, "a shipped bug: equal seeds on split tensors repeat the mask"


def kept_by(seed):
    """What this rank keeps of a split tensor of ones, if each is dropped with probability 0.1."""
    from lib.parallel.tensor import SplitDropout

    torch.manual_seed(3)
    return SplitDropout(torch.nn.Dropout(0.1), seed=seed)(torch.ones(10_000))


@pytest.mark.parametrize("seed", [None, 5])
def test_as_many_are_dropped_as_p_says_and_the_rest_makes_up_for_them(worlds, seed):
    for kept in worlds(2).run(kept_by, seed):
        assert kept.unique().tolist() == [0.0, pytest.approx(1 / 0.9)]
        assert kept.mean() == pytest.approx(1, abs=0.015)


def masks_that_are_kept(seed):
    """Bytes of the largest mask that backward keeps of a split tensor, of 64 numbers on a rank."""
    from lib.parallel.tensor import SplitDropout

    drop, kept = SplitDropout(torch.nn.Dropout(0.5), seed=seed), []

    def noted(tensor):
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
        drop(torch.ones(64, requires_grad=True))
    return max(kept)


@pytest.mark.parametrize("seed", [None, 5])
def test_a_rank_keeps_its_own_part_of_a_mask(worlds, seed):
    """Without a seed it draws the mask of all ranks, and does not keep it."""
    assert worlds(2).run(masks_that_are_kept, seed) == [4 * 64] * 2


def masks_of_a_model(transform):
    """The masks that each split dropout of a model draws first, in the order of its parts."""
    from lib.parallel.tensor.dropout import SplitNoise

    model = transform(models.gpt("dropout"), seed=3)
    noises = [one.noise for part in model.modules() for one in (part, getattr(part, "core", None))
              if isinstance(getattr(one, "noise", None), SplitNoise)]  # fmt: skip
    return [noise.like(torch.ones(64), (64,), 0, 0.5).tolist() for noise in noises]


@pytest.mark.parametrize(("transform", "count"), [(tensor_parallel, 2), (sequence_parallel, 7)])
def test_no_two_parts_and_no_two_ranks_draw_one_mask(worlds, transform, count):
    one, two = worlds(2).run(masks_of_a_model, transform)
    assert len(one) == len(two) == count
    assert len({tuple(mask) for mask in one + two}) == 2 * count


def own_seeds(name):
    """With seeds of their own for each rank, a split model trains, and stays one."""
    model = tensor_parallel(models.gpt(name), seed=3)
    v = model.shape.vocabulary
    loss = lambda logits, targets: vocab_parallel_cross_entropy(logits, targets, vocabulary=v)
    losses = trained(model, batches(v) * 5, loss)["losses"]
    assert_replicated(model)
    return losses


def test_own_seeds_train_too(worlds):
    losses = worlds(2).run(own_seeds, "everything")
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]

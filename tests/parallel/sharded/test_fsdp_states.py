"""State dicts of sharded models: whole ones, and shards for other numbers of ranks."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.sharded import FSDP
from lib.parallel.sharded.shards import whole
from lib.ranks.mesh import mesh
from lib.single import share
from tests.every import every
from tests.parallel.sharded import models
from tests.parallel.sharded.steps import ruined, state_of

MESH = {"replicas": 2, "shards": 2}


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-2)


def train(model, wrapped, optimizer, steps, rank, ranks):
    for n in steps:
        x, y = share(model.batch(n), rank, ranks)
        optimizer.zero_grad()
        model.loss(wrapped(x), y).backward()
        optimizer.step()


def trained(kind, steps, saved=None, axes=None):
    """Train for these steps, from shards if there are any; return what was kept and what it is."""
    model = ruined(kind)
    wrapped = FSDP(model, mesh(**axes) if axes else None)
    optimizer = adamw(wrapped.parameters())
    if saved:
        wrapped.load_sharded_state_dict(saved, optimizer)
    train(model, wrapped, optimizer, steps, dist.get_rank(), dist.get_world_size())
    return wrapped.sharded_state_dict(optimizer), wrapped.full_state_dict()


@pytest.mark.parametrize("kind", [models.Twice, models.Tied, models.Frozen])
def test_training_goes_on_with_other_numbers_of_ranks(worlds, kind):
    """4 → 2 → 1 ranks, with the optimizer's state, as one run on one device."""
    saved = None
    for ranks, steps in ((4, [0, 1]), (2, [2, 3]), (1, [4, 5])):
        answers = worlds(ranks).run(trained, kind, steps, saved)
        saved = [state for state, _ in answers]
    torch.manual_seed(0)
    model = kind().double()
    train(model, model, adamw(model.parameters()), range(6), 0, 1)
    for name, value in model.state_dict().items():
        assert torch.allclose(answers[0][1][name], value, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("ranks", [3, 4])
def test_the_shards_of_all_ranks_of_a_mesh_are_loaded(worlds, ranks):
    """Two replicas save two shards each: 2x2 → `ranks` → 2, bit for bit, with optimizer states."""
    answers = worlds(4).run(trained, models.Images, [0, 1], None, MESH)
    saved, weights = [state for state, _ in answers], answers[0][1]
    joined = whole(saved)
    assert every(torch.equal(joined[name], value) for name, value in weights.items())
    between = worlds(ranks).run(trained, models.Images, [], saved)
    found = worlds(2).run(trained, models.Images, [], [state for state, _ in between])
    for before, (after, _) in zip(saved, found):
        for name, state in before["optimizer"]["state"].items():
            for one, other in zip(state.values(), after["optimizer"]["state"][name].values()):
                values = [v["values"] if isinstance(v, dict) else v for v in (one, other)]
                assert torch.equal(*values), name
    for _, state in between:
        names = [name for name, _ in models.Images().named_parameters()]
        assert every(torch.equal(state[name], weights[name]) for name in names)


def test_training_on_a_mesh_goes_on_without_one(worlds):
    answers = worlds(4).run(trained, models.Tied, [0, 1], None, MESH)
    answers = worlds(4).run(trained, models.Tied, [2], [state for state, _ in answers])
    torch.manual_seed(0)
    model = models.Tied().double()
    train(model, model, adamw(model.parameters()), range(3), 0, 1)
    for name, value in model.state_dict().items():
        assert torch.allclose(answers[0][1][name], value, rtol=1e-9, atol=1e-12), name


def test_shards_of_two_steps_are_not_taken_for_replicas(worlds):
    first, second = ([state for state, _ in worlds(4).run(trained, models.Twice, steps, None, MESH)]
                     for steps in ([0], [0, 1]))  # fmt: skip
    with pytest.raises(ValueError, match="those of rank 0, but they differ"):
        whole([*first[:2], *second[2:]])
    with pytest.raises(ValueError, match="shards are those of ranks .0, 0."):
        whole([first[0], first[2]])


def resharded(kind, saved):
    wrapped = FSDP(ruined(kind))
    wrapped.load_sharded_state_dict(saved)
    return wrapped.sharded_state_dict(), wrapped.full_state_dict()


def test_shards_of_four_ranks_are_those_of_two_and_of_three(worlds):
    """4 → 2 → 3, bit for bit; and `whole` joins them without ranks."""
    answers = worlds(4).run(trained, models.Images, [0])
    state = answers[0][1]
    for ranks in (2, 3):
        answers = worlds(ranks).run(resharded, models.Images, [shards for shards, _ in answers])
        for _, found in answers:
            assert list(found) == list(state)
            assert every(torch.equal(found[name], value) for name, value in state.items())
    joined = whole([shards for shards, _ in answers])
    assert every(torch.equal(joined[name], value) for name, value in state.items())


def misfits(kind):
    wrapped, refusals = FSDP(ruined(kind)), []
    shards: list = [None] * dist.get_world_size()
    dist.all_gather_object(shards, wrapped.sharded_state_dict())
    other = FSDP(models.Perceptron().double())
    broken = copy.deepcopy(shards)
    for state in broken:
        state["weights"]["blocks.1.weight"]["values"] = torch.zeros(3)
    for call in (
        lambda: wrapped.load_sharded_state_dict(shards[:1]),
        lambda: wrapped.load_sharded_state_dict(broken),
        lambda: other.load_sharded_state_dict(shards),
        lambda: other.load_full_state_dict(wrapped.full_state_dict()),
        lambda: wrapped.load_full_state_dict(None),
    ):
        try:
            call()
        except ValueError as error:
            refusals.append(str(error))
    return refusals


def test_shards_that_do_not_fit_are_refused_on_every_rank(worlds):
    words = ["saved by 2 ranks", "elements of blocks.1.weight", "differ in",
             "has no blocks.0.linear", "passed no state dict"]  # fmt: skip
    for refusals in worlds(2).run(misfits, models.Twice):
        for refusal, word in zip(refusals, words, strict=True):
            assert word in refusal and refusal.endswith(".")


def loaded(state):
    model = ruined(models.Images)
    wrapped = FSDP(model)
    optimizer = adamw(wrapped.parameters())
    wrapped.load_full_state_dict(state if dist.get_rank() == 0 else None)
    train(model, wrapped, optimizer, [0], dist.get_rank(), dist.get_world_size())
    before = wrapped.full_state_dict()
    wrapped.load_full_state_dict(state if dist.get_rank() == 0 else None)
    return wrapped.full_state_dict(), before


def test_a_whole_state_dict_has_the_plain_models_names_and_values(worlds):
    model = models.Images().double()
    for value in model.state_dict().values():
        value.add_(1)
    for state, trained_one in worlds(4).run(loaded, state_of(model)):
        assert list(state) == list(model.state_dict())
        assert every(torch.equal(state[name], v) for name, v in model.state_dict().items())
        assert not torch.equal(trained_one["head.weight"], state["head.weight"])
        copy.deepcopy(model).load_state_dict(trained_one)


def names_of(kind):
    model = kind()
    shapes = {name: p.numel() for name, p in model.named_parameters()}
    wrapped = FSDP(model)
    pieces = {name: p.numel() for name, p in wrapped.named_parameters()}
    return shapes, pieces, [len(list(wrapped.parameters())), len(list(wrapped.named_buffers()))]


def test_parameters_keep_the_plain_models_names(worlds):
    for kind in (models.Images, models.Tied):
        answers = worlds(4).run(names_of, kind)
        for shapes, pieces, (count, _) in answers:
            assert list(pieces) == list(shapes) and count == len(shapes)
        shapes = answers[0][0]
        assert shapes == {name: sum(p[name] for _, p, _ in answers) for name in shapes}


# --- the meta device


def on_meta(kind, init=None):
    with torch.device("meta"):
        model = kind().double()
    torch.manual_seed(5)
    wrapped = FSDP(model, init=init)
    x, y = model.batch(0)
    model.loss(wrapped(x), y).backward()
    return wrapped.full_state_dict(), wrapped.full_gradients()


def ones(module):
    for tensor in (*module.parameters(False), *module.buffers(False)):
        nn.init.ones_(tensor)


def test_a_model_on_the_meta_device_is_made_unit_by_unit(worlds):
    for state, gradients in worlds(2).run(on_meta, models.Images, ones):
        assert every(torch.equal(v, torch.ones_like(v)) for v in state.values() if v.dim() > 1)
        assert set(gradients) <= set(state)


def test_a_module_on_the_meta_device_begins_as_its_own_reset_has_it(worlds):
    state, _ = worlds(2).run(on_meta, models.Recurrent)[1]
    assert every(0 < value.std() < 1 for value in state.values())


def peak_of_construction():
    from lib.ranks.memory import Memory

    with torch.device("meta"):
        model = models.Tokens()
    largest = max(sum(p.nbytes for p in part.parameters()) for part in model.blocks.values())
    with Memory(nn.Module()) as memory:
        FSDP(model)
    return memory.peak, sum(p.nbytes for p in models.Tokens().parameters()), largest


def test_no_rank_ever_holds_the_whole_model(worlds):
    """The first rank holds one unit at a time, twice: its weights and the buffer they fill."""
    for rank, (peak, model, largest) in enumerate(worlds(4).run(peak_of_construction)):
        assert model / 4 <= peak < model / 4 + (1.1 if rank else 2.1) * largest < 0.8 * model


class Bare(models.Twice):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


def refused():
    try:
        on_meta(Bare)
    except ValueError as error:
        return str(error)


def test_weights_that_nothing_initializes_are_refused(worlds):
    for refusal in worlds(2).run(refused):
        assert refusal.startswith("The model has scale on the meta device")

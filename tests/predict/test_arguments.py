"""Numbers that no prediction can be made from are refused in a sentence, before anything else."""

import ast
import math
import re
from pathlib import Path

import pytest

from lib.predict import arguments, flops, hardware, memory, step
from lib.predict.arguments import equal_share, is_whole, real, whole
from lib.predict.collectives import formulas, nodes, plans
from lib.predict.data import ddp_step, dp_step
from lib.predict.pipeline import cuts
from lib.predict.shape import GPTShape, MLPShape

NAN, INF = math.nan, math.inf
NO_COUNT = (0, -1, 1.5, True, NAN, INF, -INF, "4", [], None)
NO_RATE = (0, -1.0, True, NAN, -INF, "4", [], None)  # a bandwidth may be infinite
NO_AMOUNT = (-1.0, True, NAN, INF, -INF, "4", [], None)


class Speeds:
    """A second for everything."""

    def compute(self, flop, nbytes):
        return 1.0

    def moving(self, op, ranks, nbytes):
        return 1.0


GPT, MLP, SPEEDS = GPTShape(), MLPShape(), Speeds()
LAYERS = [cuts.Layer(1.0, 2.0, 3.0, 4)] * 4
RING, CUT = formulas.all_reduce("ring", 4, 8), cuts.Partition.read("0:2 | 2:4")
LINKS = hardware.link("NVLink4"), hardware.link("EFA 400")

COUNTS = {
    "all_reduce, ranks": lambda n: formulas.all_reduce("ring", n, 8),
    "all_reduce, itemsize": lambda n: formulas.all_reduce("ring", 4, 8, n),
    "collective, ranks": lambda n: formulas.collective("all_reduce", n, 8),
    "time_of, ranks": lambda n: formulas.time_of("all_reduce", n, 8, alpha=1.0, beta=1.0),
    "cost, ranks": lambda n: formulas.cost("central", n, 8, 1.0, 1.0),
    "training_days, gpus": lambda n: formulas.training_days(1e9, 1e9, n, 1e12, 0.5),
    "exact_days, gpus": lambda n: formulas.exact_days(GPT, 1e9, n, 1e12, 0.5),
    **{f"rounds.{name}": plan for name, plan in plans.PLANS.items()},
    "rounds.all_to_all": plans.all_to_all,
    "rounds.hierarchical, nodes": lambda n: plans.hierarchical(n, 2),
    "rounds.hierarchical, per_node": lambda n: plans.hierarchical(2, n),
    "rounds.multi_rail_ring, rails": lambda n: plans.multi_rail_ring(2, 2, n),
    "optimizer_states, itemsize": lambda n: memory.optimizer_states(GPT, "adam", n),
    "activations, batch": lambda n: memory.activations(GPT, n),
    "activations, itemsize": lambda n: memory.activations(MLP, 2, itemsize=n),
    "outputs, batch": lambda n: memory.outputs(MLP, n),
    "data_parallel, batch": lambda n: memory.data_parallel(GPT, n),
    "data_parallel_devices, devices": lambda n: memory.data_parallel_devices(GPT, 4, n),
    "flops, batch": lambda n: flops.flops(GPT, n),
    "gradient_seconds, batch": lambda n: step.gradient_seconds(MLP, n, SPEEDS),
    "step.forward, batch": lambda n: step.forward(MLP, n),
    "step.update, itemsize": lambda n: step.update(MLP, n),
    "layers_per_bucket, a width": lambda n: ddp_step.layers_per_bucket((4, n), 25),
    "data_parallel_step, a batch": lambda n: ddp_step.data_parallel_step((4, 4), [1, n], SPEEDS),
    "data_parallel_step, a bucket": lambda n: ddp_step.data_parallel_step(
        (4, 4, 4), [1], SPEEDS, buckets=[n, 2 - n if isinstance(n, int) else 1]
    ),
    "data_parallel_devices_step, devices": lambda n: dp_step.data_parallel_devices_step(
        MLP, 4, n, SPEEDS, batch_bytes=8
    ),
    "GPTShape, width": lambda n: GPTShape(width=n),
    "GPTShape, heads": lambda n: GPTShape(heads=n),
    "GPTShape, vocabulary": lambda n: GPTShape(vocabulary=n),
    "MLPShape, a width": lambda n: MLPShape((4, n)),
    "nbytes": MLP.nbytes,
    "Layer, channels": lambda n: cuts.Layer(1.0, channels=n),
    "equal, stages": lambda n: cuts.equal(LAYERS, n),
    "greedy, stages": lambda n: cuts.greedy(LAYERS, n),
    "exact, stages": lambda n: cuts.exact(LAYERS, n),
    "by_channel, ranks": lambda n: cuts.by_channel(LAYERS, n),
    "mixed, ranks": lambda n: cuts.mixed(LAYERS, n),
    "with_replicas, units": lambda n: cuts.with_replicas(LAYERS, [(n, 1.0)]),
    "stage_time, ranks": lambda n: cuts.stage_time(LAYERS, cuts.Stage(0, 2, n, "x")),
    "nodes, count": lambda n: nodes.all_reduce("flat_ring", nodes.Nodes(n, 8, *LINKS, 8), 8),
    "nodes, ranks": lambda n: nodes.all_reduce("flat_ring", nodes.Nodes(2, n, *LINKS, 1), 8),
    "nodes, rails": lambda n: nodes.all_reduce("flat_ring", nodes.Nodes(2, 8, *LINKS, n), 8),
}
RATES = {
    "bottleneck": lambda b: CUT.bottleneck(LAYERS, b),
    "stage_time": lambda b: cuts.stage_time(LAYERS, cuts.Stage(0, 2), b),
    "exact": lambda b: cuts.exact(LAYERS, 2, b),
    "by_channel": lambda b: cuts.by_channel(LAYERS, 2, b),
    "mixed": lambda b: cuts.mixed(LAYERS, 2, b),
    "with_replicas": lambda b: cuts.with_replicas(LAYERS, [(2, b)]),
    "with_replicas, outside": lambda b: cuts.with_replicas(LAYERS, [(2, 1.0), (2, b)]),
}
AMOUNTS = {
    "all_reduce, numel": lambda x: formulas.all_reduce("ring", 4, x),
    "seconds, alpha": lambda x: formulas.seconds(RING, x, 1.0),
    "seconds, beta": lambda x: formulas.seconds(RING, 1.0, x),
    "collective, nbytes": lambda x: formulas.collective("all_reduce", 4, x),
    "time_of, alpha": lambda x: formulas.time_of("all_reduce", 4, 8, alpha=x, beta=1.0),
    "cost, nbytes": lambda x: formulas.cost("bytes", 4, x, 1.0, 1.0),
    "training_days, tokens": lambda x: formulas.training_days(1e9, x, 4, 1e12, 0.5),
    "six_n": lambda x: flops.six_n(x, 1e9),
    "training_flop": lambda x: flops.training_flop(GPT, x),
    "fit, a size": lambda x: formulas.fit([1.0, x], [1.0, 2.0]),
    "fit, a time": lambda x: formulas.fit([1.0, 2.0], [1.0, x]),
    "Layer, time": cuts.Layer,
    "Layer, weights": lambda x: cuts.Layer(1.0, weights=x),
    "a layer's time": lambda x: cuts.exact([1.0, x], 2),
    "Plan.sizes": plans.ring(4).sizes,
    "nodes, nbytes": lambda x: nodes.all_reduce("flat_ring", nodes.Nodes(2, 8, *LINKS, 8), x),
}


def refused(call, value):
    """The sentence with which a value is refused."""
    with pytest.raises(ValueError) as caught:
        call(value)
    text = str(caught.value)
    assert text[-1] == "." and len(text.split()) > 4, text
    return text


@pytest.mark.parametrize("name", COUNTS)
def test_what_does_not_count_is_refused(name):
    """Case 13: mixed and by_channel on 0 ranks divided by zero; 0 units took an infinite time."""
    for value in NO_COUNT:
        if value is not None or "itemsize" not in name:
            refused(COUNTS[name], value)


@pytest.mark.parametrize("name", RATES)
def test_a_link_moves_something(name):
    """Case 13: over a link of 0, or of less than 0, bytes a second."""
    for value in NO_RATE:
        refused(RATES[name], value)
    RATES[name](INF)


@pytest.mark.parametrize("name", AMOUNTS)
def test_what_measures_nothing_is_refused(name):
    """Case 13: NaN, infinite and negative times and sizes went through, or broke far inside."""
    for value in NO_AMOUNT:
        refused(AMOUNTS[name], value)
    assert AMOUNTS[name](4.0) is not None


def test_the_three_of_the_list_in_their_own_words():
    """Case 13: each a clear sentence."""
    assert refused(lambda n: cuts.mixed(LAYERS, n), 0) == (
        "ranks must be a whole number of at least 1, not 0."
    )
    assert refused(lambda n: cuts.by_channel(LAYERS, n), 0).startswith("ranks must be")
    assert refused(lambda b: cuts.with_replicas(LAYERS, [(2, b)]), 0) == (
        "A bandwidth must be above 0, not 0."
    )
    assert "layers of a GPT must be" in refused(lambda n: GPTShape(layers=n), -1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cuts.with_replicas(LAYERS, []), "A partition needs at least one level"),
        (lambda: cuts.exact([], 1), "0 layers cannot fill 1 stages"),
        (lambda: ddp_step.data_parallel_step((4,), [1], SPEEDS), "needs two or more widths"),
        (lambda: ddp_step.data_parallel_step((4, 4), [], SPEEDS), "A step needs at least one rank"),
        (lambda: ddp_step.data_parallel_step((4, 4), [1], SPEEDS, buckets=[]), "Buckets of []"),
        (lambda: MLPShape(()), "needs two or more widths"),
        (lambda: formulas.fit([], []), "at least two sizes"),
        (lambda: formulas.training_days(1e9, 1e9, 4, 1e12, NAN), "efficiency must be"),
        (lambda: formulas.training_days(1e9, 1e9, 4, 0, 0.5), "flops_per_gpu must be"),
        (
            lambda: flops.training_flop(GPT, 1e9, "some"),
            "called 'some'. Choose one of none, full, selective",
        ),
        (lambda: flops.training_flop(MLP, 1e9), "of a MLPShape are not known"),
        (lambda: memory.activations(GPT, 1, 0), "sequence must be a whole number"),
        (lambda: memory.outputs(GPT, 1, 65), "65 tokens is too long"),
        (
            lambda: formulas.all_reduce("two_level", 4, 8, node=1.5),
            "nodes of 1.5 cannot share them equally",
        ),
        (lambda: plans.two_level(4, NAN), "nodes of nan cannot share them equally"),
        (lambda: plans.Move.read("0>0 +1"), "is not a move"),
        (lambda: plans.Move.read("0>1 =3:3"), "is not a move"),
        (lambda: cuts.Partition.read("0:2 | 3:4"), "must begin at layer 2"),
        (lambda: hardware.gpu(100), "No GPU here is called 100"),
        (lambda: hardware.sweep(None), "No sweep here is called None"),
    ],
)
def test_empty_and_impossible_questions_are_answered_in_a_sentence(call, words):
    """Case 13: the neighbours of the three."""
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        call()
    assert str(caught.value).endswith(".")


def test_numbers_of_every_kind_count():
    import numpy as np

    assert [whole(n, "n") for n in (4, 4.0, np.int64(4), np.float32(4))] == [4] * 4
    assert whole(0, "n", 0) == 0 and not is_whole(0) and not is_whole(np.bool_(True))
    assert real(np.float32(0.5), "x") == 0.5 and real(INF, "x", infinite=True) == INF
    assert formulas.all_reduce("ring", np.int64(4), 8.0) == RING
    assert plans.ring(4.0) is plans.ring(4) and cuts.mixed(LAYERS, 2.0).time > 0


def test_sizes_that_do_not_divide_are_refused_by_one_function():
    """Every remainder is refused in the same words, with its own numbers and advice."""
    assert equal_share(8, 2) == equal_share(8, 2.0) == 4 and equal_share(0, 3) == 0
    with pytest.raises(ValueError) as caught:
        equal_share(7, 2)
    assert str(caught.value) == "Dim 0 has 7 entries; 2 ranks cannot share them equally."
    with pytest.raises(ValueError) as caught:
        equal_share(6, 4, "There are {} ranks", "nodes of {}", advice="Choose a divisor of 6.")
    assert str(caught.value) == (
        "There are 6 ranks; nodes of 4 cannot share them equally. Choose a divisor of 6."
    )
    for parts in NO_COUNT:
        with pytest.raises(ValueError, match="cannot share them equally"):
            equal_share(8, parts)
    library = Path(arguments.__file__).parents[1]
    spelled = [p for p in library.rglob("*.py") if "share them equally" in p.read_text("utf-8")]
    assert spelled == [Path(arguments.__file__)], "use equal_share"


def test_a_class_of_the_predictions_has_a_name_of_its_own():
    """A schedule and a server both had Costs and a Run; a chapter that used both had to rename."""
    files = Path(arguments.__file__).parent.rglob("*.py")
    trees = [ast.parse(path.read_text("utf-8")) for path in files]
    names = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert len(names) > 20 and sorted(names) == sorted(set(names))
    functions = [n.name for tree in trees for n in tree.body if isinstance(n, ast.FunctionDef)]
    assert functions.count("play") == functions.count("simulate") == 1

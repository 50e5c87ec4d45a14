"""DeepSpeed's own examples come out of its estimators, the old one for stage 2 among them."""

import pytest

from lib.predict.sharded.deepspeed import stage_2, stage_3
from lib.predict.sharded.published import printed_as, tables
from lib.predict.sharded.states import bytes_per_parameter

EXAMPLES = tables()["deepspeed"]["examples"]
GIB = 2**30
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e["model"])


def printed(estimate, cpu, gpu):
    return printed_as(estimate.cpu / GIB, cpu), printed_as(estimate.gpu / GIB, gpu)


@every_example
def test_its_tables_of_stage_3_recompute(example):
    sizes = example["parameters"], example["largest_layer"], example["gpus"]
    assert len(example["stage_3"]) == 6
    for optimizer, params, init, cpu, gpu in example["stage_3"]:
        more = {"offload_optimizer": optimizer, "offload_param": params, "zero_init": init}
        assert printed(stage_3(*sizes, **more), cpu, gpu) == ("rounded", "rounded")


@every_example
def test_its_tables_of_stage_2_recompute_by_the_old_formula_only(example):
    """The page prints 15.93, which is 4ψ + 16ψ/n; the code gives 11.29."""
    sizes, note = (example["parameters"], example["gpus"]), tables()["deepspeed"]["note"]
    for offload, cpu, gpu in example["stage_2"]:
        old, new = (stage_2(*sizes, offload_optimizer=offload, old=old) for old in (True, False))
        assert printed(old, cpu, gpu) == ("rounded", "rounded")
        if offload:
            assert old == new
        else:
            assert printed(new, cpu, gpu) == ("rounded", "")
            assert f"{new.gpu / GIB:.2f}" in note and f"{gpu:.2f}" in note


def test_without_offload_the_conventions_of_deepspeed_are_its_estimators():
    numel = 8 * 10**9
    for n in (1, 4, 64):
        new, whole = stage_2(numel, n).gpu, stage_3(numel, 1000, n).gpu - 4000
        assert new == bytes_per_parameter(n, 2, "DeepSpeed stage 2") * numel
        assert whole == bytes_per_parameter(n, 3, "DeepSpeed stage 3") * numel
        assert stage_2(numel, n, old=True).gpu == (4 + 16 / n) * numel
        assert stage_2(numel, n, old=True).gpu - new == 2 * numel - 2 * numel // n


def test_nodes_share_what_gpus_share_and_hosts_keep_their_part():
    assert stage_3(10**9, 10**6, 8, 4).gpu == 4 * 10**6 + 18 * 10**9 // 32
    one, four = (stage_3(10**9, 10**6, 8, nodes, offload_optimizer=True) for nodes in (1, 4))
    assert one.cpu == 4 * four.cpu == 24 * 10**9
    all_of_it = stage_3(10**9, 10**6, 8, 4, offload_optimizer=True, offload_param=True)
    assert all_of_it.gpu == 4 * 10**6 and all_of_it.cpu == 1.5 * 18 / 4 * 10**9


def test_parameters_are_not_offloaded_alone():
    with pytest.raises(ValueError, match="only together with the optimizer. Say offload_optimizer"):
        stage_3(10, 2, 1, offload_param=True)

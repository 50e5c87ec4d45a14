"""Offload where a rank has it: the tests beside this one, run on a rank's own device.

With `make test-gpu` that is a GPU: the host's tensors are pinned, and copies have streams.
"""

import pytest
import torch

from lib.single import GPT
from lib.single.host_memory import HostMemory
from lib.single.offload import OffloadedOptimizer
from tests.single import test_offload as offload
from tests.single import test_parameter_cache as cache

CASES = {
    "same bits": (offload.test_training_is_the_same_to_the_bit, "adamw", 4000),
    "same bits, SGD": (offload.test_training_is_the_same_to_the_bit, "sgd", 1),
    "several backwards": (offload.test_gradients_of_several_backward_passes_are_added,),
    "frozen and unused": (offload.test_frozen_and_unused_weights_stay_as_they_are,),
    "by hand": (offload.test_gradients_that_were_set_by_hand_are_taken,),
    "16 bits": (offload.test_weights_of_16_bits_are_stepped_in_32,),
    "clipped": (offload.test_the_norm_is_clipped_on_the_host,),
    "delayed": (offload.test_a_delayed_update_uses_the_gradients_of_the_step_before,),
    "groups": (offload.test_groups_schedules_and_closures_are_those_of_pytorch,),
    "saved": (offload.test_states_are_saved_with_the_weights_in_full_precision,),
    "refreshed": (offload.test_weights_changed_by_hand_are_told_by_refresh,),
    "bytes": (offload.test_bytes_in_both_memories_are_as_predicted, 4, False),
    "bytes of 16 bits": (offload.test_bytes_in_both_memories_are_as_predicted, 2, True),
    "cache": (cache.test_training_is_the_same_and_the_bytes_are_as_predicted, 0.5, 1),
    "cache, nothing ahead": (
        cache.test_training_is_the_same_and_the_bytes_are_as_predicted,
        0.0,
        0,
    ),
    "cache, tied": (cache.test_a_tied_language_model_keeps_what_two_units_share,),
    "cache, twice": (cache.test_units_that_run_twice_frozen_unused_and_recomputed, False),
    "cache, recomputed": (cache.test_units_that_run_twice_frozen_unused_and_recomputed, True),
    "cache, evaluated": (
        cache.test_evaluation_and_a_forward_without_backward_leave_nothing_behind,
    ),
    "cache, failed": (cache.test_a_step_that_fails_leaves_a_cache_that_works,),
    "cache, changed": (cache.test_weights_that_are_changed_inside_whole_stay_changed,),
}


@pytest.mark.parametrize("name", CASES)
def test_what_holds_on_the_cpu_holds_on_a_rank(worlds, name):
    test, *arguments = CASES[name]
    worlds(1).run(test, *arguments)


def without_the_way_back():
    with pytest.MonkeyPatch.context() as patch:
        offload.test_without_the_way_back_it_is_not(patch)


def test_without_the_way_back_it_is_not_there_either(worlds):
    worlds(1).run(without_the_way_back)


def where_things_lie():
    model, host = GPT(offload.SHAPE), HostMemory()
    optimizer = OffloadedOptimizer(model.parameters(), torch.optim.AdamW, host, lr=0.01)
    offload.train(model, optimizer, 1)
    weight = next(iter(optimizer.home))
    home, state = optimizer.home[weight], optimizer.state[optimizer.home[weight]]["exp_avg"]
    here = torch.accelerator.current_stream() if weight.device.type != "cpu" else None
    apart = [stream != here for stream in host.streams.values()]
    kinds = sorted(op for op, _ in host.streams)
    return weight.device.type, home.device.type, state.device.type, home.is_pinned(), kinds, apart


def test_on_a_gpu_home_is_pinned_and_each_direction_has_a_stream(worlds):
    kind = torch.device(worlds(1).device).type
    answer = worlds(1).run(where_things_lie)[0]
    if kind == "cpu":
        assert answer == ("cpu", "cpu", "cpu", False, [], [])
    else:
        assert answer == (kind, "cpu", "cpu", True, ["to_device", "to_host"], [True, True])

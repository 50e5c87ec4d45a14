"""Offload of activations where a rank has it: the tests beside this one, on a rank's own device.

With `make test-gpu` that is a GPU: the host's tensors are pinned, and copies have streams.
"""

import pytest
import torch

from lib.single.host_memory import HostMemory
from lib.single.recompute.offload import offload_activations
from tests.single.recompute import test_offload as offload

CASES = {
    **{f"same bits, {name}": (offload.test_no_bit_of_a_gradient_changes, name, 1, 1)
       for name in offload.MODELS},
    "same bits, nothing ahead": (offload.test_no_bit_of_a_gradient_changes, "GPT", 0, 0),
    "same bits, two ahead": (offload.test_no_bit_of_a_gradient_changes, "MLP", 0, 2),
    "the way back": (offload.test_without_the_way_back_it_does, "MLP"),
    "bytes": (offload.test_bytes_after_forward_are_the_prediction, "MLP", 1, 1),
    "bytes of a GPT": (offload.test_bytes_after_forward_are_the_prediction, "GPT", {1, 3}, 1),
    "in backward": (offload.test_in_backward_a_block_and_the_next_ones_are_there,),
    "once": (offload.test_a_storage_that_two_blocks_save_is_sent_once,),
    "checkpoints": (offload.test_checkpoints_send_their_inputs_only,),
    "without backward": (
        offload.test_evaluation_and_a_forward_without_backward_leave_nothing_behind,
    ),
    "two forwards": (offload.test_two_forwards_before_their_backwards,),
    "early and twice": (offload.test_a_backward_that_ends_early_and_one_that_runs_twice,),
    "failed": (offload.test_a_forward_that_fails_leaves_a_model_that_works,),
    "changed": (offload.test_what_is_changed_after_it_was_saved_is_refused, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_holds_on_the_cpu_holds_on_a_rank(worlds, name):
    test, *arguments = CASES[name]
    worlds(1).run(test, *arguments)


class Noting(HostMemory):
    """Notes where the tensors of the host lie."""

    def __init__(self):
        super().__init__()
        self.lay = set()

    def empty(self, like, dtype=None):
        made = super().empty(like, dtype)
        self.lay.add((made.device.type, made.is_pinned()))
        return made


def where_things_lie():
    model, x = offload.placed("MLP")
    host = Noting()
    offload_activations(model, host=host)
    model(x).sum().backward()
    here = torch.accelerator.current_stream() if x.device.type != "cpu" else None
    apart = [stream != here for stream in host.streams.values()]
    return x.device.type, host.lay, sorted(op for op, _ in host.streams), apart


def test_on_a_gpu_the_hosts_memory_is_pinned_and_each_direction_has_a_stream(worlds):
    kind = torch.device(worlds(1).device).type
    answer = worlds(1).run(where_things_lie)[0]
    if kind == "cpu":
        assert answer == ("cpu", {("cpu", False)}, [], [])
    else:
        assert answer == (kind, {("cpu", True)}, ["to_device", "to_host"], [True, True])

"""The tests of ranks on GPUs: what cannot be tried there, and numbers drawn as on the CPU.

`make test-gpu` runs the tests that ask `worlds` for ranks on the GPUs that are there, or on
pretended ones. A test compares ranks with one device in the notebook, on the CPU: both must draw
the same random numbers, so ranks draw on the CPU and move what they have drawn.
"""

import fnmatch
import functools
import os

import torch

WANTED = bool(os.environ.get("RANKS_TEST_GPUS"))
# Who reads what never comes blocks there untold, until the patience of the World is over.
PATIENCE = {"patience": 1.0} if WANTED else {}

# Tests that ask for more than GPUs give, by the end of their id -> why they are left out there.
SPARSE = "the pretended GPU has no sparse tensors"
LSTM = "the pretended GPU has no fused LSTM, which PyTorch takes on GPUs"
ANY_SOURCE = "NCCL receives from no source that is not named"
SLOW = "slow motion stretches the time of CPU ranks"
ATTENTION = "a GPU computes attention in other operations, which keep other tensors"
UNASKED = "tokens on a GPU are not looked at, because the CPU would have to wait for it"
OFFLOAD = (
    "PyTorch lets a parameter change between CPU and CUDA in place, but to no registered device"
)
CPU_ONLY = {
    "tests/ranks/test_slow_motion.py*": SLOW,
    "tests/ranks/slow/test_co*": SLOW,
    "test_host_lanes.py::test_a_step_takes_the_predicted_time*": SLOW,
    "test_host_lanes.py::test_a_step_with_a_cache_takes_the_predicted_time*": SLOW,
    "test_offloaded_activations.py::test_a_step_takes_the_predicted_time*": SLOW,
    "test_a_pipeline_sends_along_its_axis_and_averages_before_zero_gathers": "on NCCL each "
    "direction of a pipeline has a group of its own",
    "test_host_lanes.py::test_a_delayed_update_is_hidden_as_predicted": SLOW,
    "test_on_the_cpu_slow_motion_can_be_set_and_taken_back": SLOW,
    "test_every_operation_gives_the_same_by_way_of_copies": "it lets every rank send first: on "
    "NCCL that waits for ever",
    "test_compressors.py::test_as_on_one_device*-3 bits?": "ranks round by random numbers of "
    "their GPUs",
    "test_summing_order.py::test_gloos_reduce_scatter*": "NCCL adds in an order of its own",
    "test_fsdp_precision.py::test_gradients_are_summed_in_reduce_dtype*": "a GPU multiplies and "
    "NCCL adds in orders of their own",
    "test_ambient.py::test_a_call_begins_without_what_the_last_one_left": "it asks for the "
    "CPU's device",
    "test_ambient.py::test_a_call_begins_as_a_function_in_the_notebook_would": "it asks for the "
    "CPU's autocast",
    "parallel/sharded/test_fsdp_memory.py*": ATTENTION,
    "parallel/tensor/test_bytes.py::test_what_a_rank_keeps*": ATTENTION,
    "parallel/sequence/test_bytes.py::test_what_a_rank*": ATTENTION,
    "predict/tensor/test_step.py::test_each_operation_is_performed*": ATTENTION,
    "test_autocast_computes_in_two_bytes": "it asks for the CPU's autocast",
    "test_the_sum_is_launched_before_the_weights_gradient_is_computed": "it reads a profile of the "
    "CPU's operations",
    "test_vocabulary.py::test_what_cannot_be_is_refused?token*": UNASKED,
    "test_vocabulary.py::test_what_cannot_be_is_refused?target*": UNASKED,
    "test_ambient.py::test_what_is_said_to_stay_stays": "a GPU draws other random numbers",
    "test_strangers.py::test_no_port_is_open_while_a_member_is_late": "NCCL has ports of its own",
    "test_ddp_gradients.py::test_sparse_gradients_are_pytorchs*": "NCCL sums no sparse tensors, "
    "for PyTorch's DDP neither",
    "test_powersgd_on_memory_in_another_order": "a GPU convolves otherwise where the order of the "
    "memory is another",
    "test_nobody_waits_for_who_was_called_late": "a GPU's marks tell when its stream passed them",
    "tests/ranks/observed/test_coalescing.py*": "a double stands for NCCL, and gloo for what it "
    "carries",
    "test_hooks_of_another_thread_are_recorded": "a GPU's backward has a thread of its own anyhow",
    "test_a_thread_that_will_serve_the_other_group_is_no_deadlock*": "threads of a rank share its "
    "GPU's stream, where what the second one launches stands behind what the first one waits for",
    "test_messages_from_any_source_are_counted_when_they_have_come": ANY_SOURCE,
    "test_a_receive_from_any_source_that_nobody_serves*": ANY_SOURCE,
    "test_spans_are_compute_rows_and_a_wait_inside_one_is_a_wait": "what a GPU's stream does in no "
    "time has no row: all marks after a collective are passed at its end",
    "test_what_gloo_refuses_is_told_as_the_readers_error*": "NCCL refuses other things than gloo",
    "test_a_message_arrives_though_nobody_kept_its_work": "on NCCL messages that cross "
    "wait for each other: tests/ranks/state/test_gpu_streams.py shows that",
}
PRETENDED_ONLY = {
    "tests/parallel/data/test_sparse.py*": SPARSE,
    "test_a_sparse_or_meta_tensor_on_one_rank?sparse*": SPARSE,
    "test_ddp_oracle.py::test_twenty_steps_are_pytorchs_bit_for_bit?Recurrent-*": LSTM,
    "test_fsdp.py::test_spread_equals_whole*Recurrent*": LSTM,
    "test_fsdp_oracle.py::*Recurrent*": LSTM,
    "test_a_module_on_the_meta_device_begins_as_its_own_reset_has_it": LSTM,
    "test_zero_states.py::*Recurrent*": LSTM,
    **dict.fromkeys(
        (
            f"test_fsdp_offload.py::{name}*"
            for name in (
                "test_spread_equals_whole",
                "test_with_any_option_it_is_what_fsdp_computes",
                "test_hybrid_sharding_keeps_its_shards_there_too",
                "test_gradients_add_up",
                "test_its_states_are_loaded_by_other_numbers",
                "test_without_the_way_up_it_is_wrong",
                "test_bytes_in_both_memories_are_as_predicted",
            )
        ),
        OFFLOAD,
    ),
    "test_the_script_under_going_further_runs_with_torchrun": "the script asks for CUDA's GPUs",
    "test_ddp_gradients.py::test_a_table_that_some_ranks_use*": SPARSE,
    "test_runtime_edges.py::test_sparse_gradients_that_would_be_summed_are_refused": SPARSE,
    "test_compressors_edges.py::test_plain_lists_may_be_empty_but_not_sparse": SPARSE,
    "test_parameter_server_edges.py::test_sparse_gradients_reach_the_server*": SPARSE,
    "test_parameter_server_edges.py::test_local_sgd_steps_on_sparse_gradients": SPARSE,
    "test_parameter_server_edges.py::test_what_cannot_be_broadcast_is_named*": SPARSE,
    "test_ddp_buffers.py::test_what_cannot_be_broadcast_is_named?sparse_buffer-*": SPARSE,
    "test_ddp_edges.py::test_what_cannot_be_is_refused_in_a_sentence?sparse-*": SPARSE,
    "test_ddp_edges.py::test_what_cannot_be_is_refused_in_a_sentence?dense_after_all-*": SPARSE,
}

RANDOM = {
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"),
    *("rand_like", "randn_like", "randint_like"),
    *("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "trunc_normal_"),
    *("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "orthogonal_"),
}


told: dict[str, list[str]] = {}  # name of a file in _build -> what a run on GPUs writes there


def tell(name: str, *lines: str) -> None:
    """Keep lines for a file of _build; the end of a run on GPUs writes it anew."""
    if WANTED:
        told.setdefault(name, []).extend(lines)


def tell_failure(error) -> None:
    """Keep the message and the table of a RankError that the present test has caused."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
    tell("failures-on-gpus.md", f"## {test}", "", "```", str(error), "```", "")


def left_out(node: str) -> str:
    """Say why a test is left out on these GPUs; "" if it is not."""
    pretended = getattr(torch.accelerator.current_accelerator(), "type", "") == "pretend"
    known = CPU_ONLY | (PRETENDED_ONLY if pretended else {})
    return next((why for end, why in known.items() if fnmatch.fnmatch(node, f"*{end}")), "")


def draw_on_the_cpu() -> None:
    """Let this rank draw random numbers on the CPU where no generator is named."""
    from lib.ranks.state import default_device

    plain = default_device._Default.__torch_function__
    if hasattr(plain, "__wrapped__"):
        return  # it does so already

    @functools.wraps(plain)
    def drawn(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") in RANDOM and kwargs.get("generator") is None:
            kwargs["generator"] = torch.default_generator
        return plain(self, func, types, args, kwargs)

    # Its frames are no more the reader's than those it stands for.
    drawn.__code__ = drawn.__code__.replace(co_filename=plain.__code__.co_filename)
    default_device._Default.__torch_function__ = drawn

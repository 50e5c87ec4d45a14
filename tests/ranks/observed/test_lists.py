"""Collectives on lists: what does not fit is refused in a sentence, before anything is launched."""

import time

import pytest
import torch
import torch.distributed as dist

from tests.ranks.test_failures import failing


def unevenly(step):
    time.sleep(0.5 * dist.get_rank())
    step()


def gathers_into_too_little():
    dist.all_gather([torch.ones(1)] * 2, torch.ones(2))


def gathers_too_few():
    dist.all_gather([torch.ones(2)], torch.ones(2))


def gathers_at_the_root():
    root = dist.get_rank() == 0
    dist.gather(torch.ones(2), [torch.ones(1)] * 2 if root else None)


def scatters_too_much():
    root = dist.get_rank() == 0
    dist.scatter(torch.ones(3), [torch.ones(2)] * 2 if root else None)


def reduces_another_shape():
    dist.reduce_scatter(torch.ones(3), [torch.ones(2)] * 2)


LISTS = {
    gathers_into_too_little: "all_gather got a tensor of 2 numbers, but this rank's entry in the "
    "list has 1: make both the same size.",
    gathers_too_few: "all_gather got a list of 1 tensors, but group world has 2 ranks: give one "
    "tensor for each.",
    gathers_at_the_root: "gather got a tensor of 2 numbers, but this rank's entry in the list "
    "has 1",
    scatters_too_much: "scatter got a tensor of 3 numbers, but this rank's entry in the list has 2",
    reduces_another_shape: "reduce_scatter got a tensor of 3 numbers, but this rank's entry in the "
    "list has 2",
}


@pytest.mark.parametrize("step", LISTS, ids=lambda step: step.__name__)
def test_a_list_of_wrong_sizes_is_refused_before_it_is_launched(worlds, step):
    """NCCL would write past the end of a tensor, or wait for ever."""
    error = failing(worlds(2), unevenly, step)
    assert error.rank == 0 and f"rank 0 raised ValueError: {LISTS[step]}" in str(error)
    assert f", in {step.__name__}" in str(error) and "rank 1 was stopped" in str(error)

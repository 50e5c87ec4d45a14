// What carries collectives between pretended GPUs, and behaves as NCCL does.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace pretend {

// `gloo` moves the bytes; `store` is where ranks meet before they first speak to each other.
c10::intrusive_ptr<c10d::Backend> like_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<c10d::Backend>& gloo);

}  // namespace pretend

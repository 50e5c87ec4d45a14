// A tensor of the pretended GPU as the CPU sees it.
#pragma once

#include <ATen/core/Tensor.h>

namespace pretend {

at::Tensor on_cpu(const at::Tensor& tensor);  // the same memory; what is not on a GPU as it is
c10::Storage adopted(const c10::Storage& cpus, c10::DeviceIndex index);  // the GPU's from now on

}  // namespace pretend

// The random numbers of the pretended GPU.
#pragma once

#include <ATen/core/Generator.h>

namespace pretend {

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator drawn_from(const at::Generator& generator);  // the CPU's one that is inside
void become_accelerator();

}  // namespace pretend

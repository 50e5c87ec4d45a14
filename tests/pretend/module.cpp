// What Python sees of the pretended GPU: the rest comes by way of torch's own functions.

#include <torch/csrc/utils/pybind.h>

#include "nccl.h"
#include "random.h"
#include "streams.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("become_accelerator", &pretend::become_accelerator);
  m.def("count", &pretend::count);
  m.def("default_generator", [](int index) { return pretend::default_generator(index); });
  m.def("like_nccl", &pretend::like_nccl, pybind11::call_guard<pybind11::gil_scoped_release>());
}

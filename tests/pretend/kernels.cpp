// Every operation of the pretended GPU: the CPU carries it out in the GPU's memory. Before that, the
// thread that asks waits for what the stream waits for, as with CUDA_LAUNCH_BLOCKING=1.

#include "kernels.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>

#include "random.h"
#include "streams.h"

namespace pretend {

namespace {

bool is_gpu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kGPU;
}

at::Tensor over(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKeySet keys) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(storage), keys, like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) tensor._set_conj(true);
  if (like.is_neg()) tensor._set_neg(true);
  return tensor;
}

void release(void* storage) { delete static_cast<c10::Storage*>(storage); }

// One call: its arguments as the CPU takes them, and its results as the GPU has them.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(stack) {
    const auto& arguments = op.schema().arguments();
    const size_t first = stack->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) look((*stack)[first + i]);
    TORCH_CHECK(where_.has_value(), op.schema().name(), " has no tensor on a GPU");
    if (stranger_ && !mixes())
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two "
                  "devices, ", *where_, " and ", *stranger_, "! (", op.schema().name(), ")");
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      const bool written = alias && alias->isWrite();
      give((*stack)[first + i], *arguments[i].type(), written, arguments[i].is_out());
    }
  }

  void run() {
    c10::DeviceGuard guard(*where_);
    drain(stream_of(where_->index()));
    {
      at::AutoDispatchBelowAutograd below;
      op_.callBoxed(*stack_);
    }
    for (auto& [theirs, resized] : grown_) {
      theirs.resize_(resized.sizes());
      on_cpu(theirs).copy_(resized);
    }
    const size_t results = op_.schema().returns().size();
    for (size_t i = stack_->size() - results; i < stack_->size(); ++i) take((*stack_)[i]);
  }

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  std::optional<c10::Device> where_, stranger_;
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases_;  // the GPU's, the CPU's
  std::vector<std::pair<at::Tensor, at::Tensor>> grown_;  // empty ones to write to

  static const c10::TypePtr& generator() {
    static const c10::TypePtr known = c10::OptionalType::create(c10::GeneratorType::get());
    return known;
  }

  bool mixes() const {  // where CUDA takes tensors of the CPU as well
    const auto& name = op_.schema().name();
    return name.find("index") != std::string::npos || name.find("foreach") != std::string::npos ||
        name.find("fused_adam") != std::string::npos;
  }

  void look(const c10::IValue& value) {
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (is_gpu(tensor)) {
        if (where_ && *where_ != tensor.device()) stranger_ = tensor.device();
        where_ = where_.value_or(tensor.device());
      } else if (tensor.defined() && tensor.dim() > 0) {
        stranger_ = tensor.device();
      }
    } else if (value.isList()) {
      for (const auto& part : value.toListRef()) look(part);
    } else if (value.isDevice() && value.toDevice().type() == kGPU && !where_) {
      where_ = gpu(value.toDevice().index());
    }
  }

  void give(c10::IValue& value, const c10::Type& type, bool written, bool out) {
    if (value.isTensor()) {
      value = given(value.toTensor(), written, out);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& part : value.toTensorVector()) list.push_back(given(part, written, out));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor> part : value.toOptionalTensorList())
        list.push_back(part ? std::optional(given(*part, written, out)) : std::nullopt);
      value = list;
    } else if (value.isDevice()) {
      value = c10::Device(c10::DeviceType::CPU);
    } else if (type.isSubtypeOf(*generator())) {
      const bool own = value.isGenerator();
      if (!own || value.toGenerator().device().type() == kGPU)
        value = drawn_from(own ? value.toGenerator() : default_generator(where_->index()));
    }
  }

  at::Tensor given(const at::Tensor& tensor, bool written, bool out) {
    if (!is_gpu(tensor)) return tensor;
    if (out || (written && tensor.numel() == 0)) {  // the CPU gives it the size that it needs
      auto size = out ? std::vector<int64_t>{0} : tensor.sizes().vec();
      grown_.emplace_back(tensor, at::empty(size, tensor.options().device(at::kCPU)));
      aliases_.push_back(grown_.back());
    } else {
      aliases_.emplace_back(tensor, on_cpu(tensor));
    }
    return aliases_.back().second;
  }

  void take(c10::IValue& value) {
    if (value.isTensor()) {
      value = taken(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& part : value.toTensorVector()) list.push_back(taken(part));
      value = list;
    }
  }

  at::Tensor taken(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) return tensor;
    for (auto& [theirs, ours] : aliases_) {
      if (tensor.is_same(ours)) return theirs;
      const auto* data = ours.storage().data();
      if (data && tensor.storage().data() == data)  // a view of an argument
        return over(theirs.storage(), tensor, theirs.key_set());
    }
    return fills_memory_of_its_own(tensor) ? moved(tensor) : copied(tensor);
  }

  static bool fills_memory_of_its_own(const at::Tensor& tensor) {
    const auto& storage = tensor.storage();
    const auto bytes = at::detail::computeStorageNbytes(
        tensor.sizes(), tensor.strides(), tensor.dtype().itemsize());
    return storage.use_count() == 1 && storage.nbytes() == bytes && storage.resizable() &&
        tensor.storage_offset() == 0 && !tensor.is_conj() && !tensor.is_neg();
  }

  at::Tensor moved(const at::Tensor& tensor) {
    auto home = at::detail::make_tensor<c10::TensorImpl>(
        adopted(tensor.storage(), where_->index()),
        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), tensor.dtype());
    home.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    return home;
  }

  at::Tensor copied(const at::Tensor& tensor) {
    auto home = at::empty_strided(
        tensor.sizes(), tensor.strides(), tensor.options().device(*where_));
    on_cpu(home).copy_(tensor);
    return home;
  }
};

void any(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).run(); }

at::Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(gpu(device ? device->index() : -1));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(kGPU),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), at::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(gpu(device ? device->index() : -1));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), c10::GetAllocator(kGPU),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), at::dtype_or_default(dtype));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
    std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

const at::Tensor& resize_(
    const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(
      self, std::move(source), offset.guard_int(__FILE__, __LINE__), C10_AS_INTARRAYREF_SLOW(size),
      C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto size = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {size}, {});
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  for (const auto& end : {source, target})
    if (is_gpu(end)) drain(stream_of(end.device().index()));
  on_cpu(target).copy_(on_cpu(source));
  return target;
}

at::Tensor copy_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar read(const at::Tensor& self) {
  drain(stream_of(self.device().index()));
  return on_cpu(self).item();
}

void record_stream(at::Tensor&, at::Stream) {}

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
    bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  drain(stream_of(input.device().index()));
  auto result = at::convolution_symint(
      on_cpu(input), on_cpu(weight), bias ? std::optional(on_cpu(*bias)) : std::nullopt, stride,
      padding, dilation, transposed, output_padding, std::move(groups));
  return result.to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
    bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> mask) {
  drain(stream_of(input.device().index()));
  std::vector<c10::SymInt> bias{weight.sym_size(transposed ? 1 : 0)};
  auto [a, b, c] = at::convolution_backward_symint(
      on_cpu(gradient), on_cpu(input), on_cpu(weight), c10::SymIntArrayRef(bias), stride, padding,
      dilation, transposed, output_padding, std::move(groups), mask);
  auto home = [&](const at::Tensor& t) { return t.defined() ? t.to(input.device()) : t; };
  return {home(a), home(b), home(c)};
}

int64_t plain_attention(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
    double, bool, std::optional<double>, bool) {
  return 0;  // made of plain operations
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&any>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_and_resize);
  m.impl("_local_scalar_dense", &read);
  m.impl("record_stream", &record_stream);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());  // the CPU's copy resolves it
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define HIGH(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_LOWER_PRECISION_FP(LOW)
  AT_FORALL_FP32(HIGH)
#undef LOW
#undef HIGH
}

}  // namespace

at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!is_gpu(tensor)) return tensor;
  const auto& theirs = tensor.storage();
  auto* data = theirs.unsafeGetStorageImpl()->mutable_data();
  c10::Storage ours(
      c10::Storage::use_byte_size_t(), theirs.nbytes(),
      c10::DataPtr(data, new c10::Storage(theirs), release, c10::Device(at::kCPU)), nullptr, false);
  const auto cpu = c10::BackendComponent::CPUBit;  // never an inference tensor: lanes write there
  return over(
      ours, tensor,
      c10::DispatchKeySet(c10::DispatchKey::CPU) | c10::getAutogradRelatedKeySetFromBackend(cpu) |
          c10::getAutocastRelatedKeySetFromBackend(cpu));
}

}  // namespace pretend

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &pretend::plain_attention)
}  // namespace at::native

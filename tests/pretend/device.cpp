// Memory, random numbers and the hooks by which PyTorch knows the pretended GPU as its accelerator.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "kernels.h"
#include "random.h"
#include "streams.h"

namespace pretend {

namespace {

constexpr size_t kBytes = 1u << 30;  // of memory in all, as it says
std::mutex memory_mutex;
std::array<c10::CachingDeviceAllocator::DeviceStats, 16> stats;

struct Block {
  void* data;
  size_t bytes;
  c10::DeviceIndex index;
  std::optional<c10::Storage> cpus = std::nullopt;  // the CPU's, where it made what stands there

  ~Block() {
    if (!cpus) std::free(data);
  }
};

void count_bytes(c10::DeviceIndex index, int64_t bytes) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  for (auto* stat : {&stats[index].allocated_bytes[0], &stats[index].reserved_bytes[0]}) {
    if (bytes >= 0) {
      stat->increase(bytes);
    } else {
      stat->decrease(-bytes);
    }
  }
}

// Freed memory is used again only by what comes later in the stream, as CUDA's allocator has it: a
// collective that the stream waits for may still be reading it.
void give_back(std::unique_ptr<Block> block, Fences fences) {
  using Freed = std::pair<std::unique_ptr<Block>, Fences>;
  static auto* const freed = new std::deque<Freed>;  // never ended
  std::lock_guard<std::mutex> lock(memory_mutex);
  freed->emplace_back(std::move(block), std::move(fences));
  auto over = [](const Freed& one) {
    return std::all_of(one.second.begin(), one.second.end(),
                       [](const std::shared_ptr<Fence>& fence) { return fence->done(); });
  };
  freed->erase(std::remove_if(freed->begin(), freed->end(), over), freed->end());
}

void free_block(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  count_bytes(block->index, -static_cast<int64_t>(block->bytes));
  auto fences = pending(block->index);
  if (!fences.empty()) give_back(std::move(block), std::move(fences));
}

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes && posix_memalign(&data, 64, bytes))
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the pretended GPU has no ", bytes, " bytes");
    auto index = current();
    count_bytes(index, static_cast<int64_t>(bytes));
    return {data, new Block{data, bytes, index}, free_block, gpu(index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory_mutex);
    return stats.at(index);
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory_mutex);
    stats.at(index).allocated_bytes[0].reset_peak();
    stats.at(index).reserved_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory_mutex);
    return {kBytes - stats.at(index).allocated_bytes[0].current, kBytes};
  }
};

// Memory of the processor that is known as pinned, as what travels to a GPU should be.
struct Pinned final : c10::Allocator {
  static std::set<const void*>& all() {
    static std::set<const void*> known;
    return known;
  }
  static bool knows(const void* data) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    return all().count(data) > 0;
  }
  static void release(void* data) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    all().erase(data);
    std::free(data);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes && posix_memalign(&data, 64, bytes))
      TORCH_CHECK_WITH(OutOfMemoryError, false, "no ", bytes, " bytes to pin");
    std::lock_guard<std::mutex> lock(memory_mutex);
    all().insert(data);
    return {data, data, release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Pinned pinned;
Memory memory;
REGISTER_ALLOCATOR(kGPU, &memory)

// Draws what the CPU would draw from another seed: a GPU's numbers are not the CPU's either.
struct Random final : c10::GeneratorImpl {
  at::Generator inner;

  explicit Random(c10::DeviceIndex index)
      : c10::GeneratorImpl(gpu(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::detail::createCPUGenerator()) {
    set_current_seed(c10::default_rng_seed_val);
  }
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    inner.set_current_seed(seed + 0x9e3779b97f4a7c15);
  }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "no offset here"); }
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  Random* clone_impl() const override {
    auto* copy = new Random(device().index());
    copy->seed_ = seed_;
    copy->inner = inner.clone();
    return copy;
  }

 private:
  uint64_t seed_ = 0;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(count()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchangeDevice(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return c10::impl::getDeviceGuardImpl(kGPU)->exchangeDevice(gpu(index)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  bool isPinnedPtr(const void* data) const override { return Pinned::knows(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Random>(gpu(index).index());
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

c10::Storage adopted(const c10::Storage& cpus, c10::DeviceIndex index) {
  auto* data = cpus.unsafeGetStorageImpl()->mutable_data();
  count_bytes(index, static_cast<int64_t>(cpus.nbytes()));
  auto* block = new Block{data, cpus.nbytes(), index, cpus};
  return c10::Storage(
      c10::Storage::use_byte_size_t(), cpus.nbytes(),
      c10::DataPtr(data, block, free_block, gpu(index)), &memory, true);
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::deque<at::Generator> made = [] {
    std::deque<at::Generator> all;
    for (int i = 0; i < count(); ++i) all.push_back(at::make_generator<Random>(i));
    return all;
  }();
  return made.at(gpu(index).index());
}

at::Generator drawn_from(const at::Generator& generator) {
  return static_cast<Random*>(generator.unsafeGetGeneratorImpl())->inner;
}

void become_accelerator() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace pretend

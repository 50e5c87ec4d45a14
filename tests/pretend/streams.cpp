#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>

namespace pretend {

namespace {

constexpr int kMost = 16;
thread_local c10::DeviceIndex here = 0;
thread_local std::array<c10::StreamId, kMost> streams{};
std::atomic<c10::StreamId> made{0};

std::mutex mutex;
std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Fences> waiting;

c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kGPU, index), id);
}

Fences& of(c10::Stream stream) {  // under the mutex; without what has ended
  auto& fences = waiting[{stream.device_index(), stream.id()}];
  auto over = [](const std::shared_ptr<Fence>& fence) { return fence->done(); };
  fences.erase(std::remove_if(fences.begin(), fences.end(), over), fences.end());
  return fences;
}

}  // namespace

void Fence::finish() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (at_ < 0) at_ = seconds();
  ended_.notify_all();
}

bool Fence::done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return at_ >= 0;
}

void Fence::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return at_ >= 0; });
}

double Fence::at() {
  std::lock_guard<std::mutex> lock(mutex_);
  return at_;
}

double seconds() {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

int count() {
  static const int known = [] {
    const char* told = std::getenv("PRETEND_DEVICES");
    return told ? std::clamp(std::atoi(told), 0, kMost) : 4;
  }();
  return known;
}

c10::DeviceIndex current() { return here; }

c10::Device gpu(c10::DeviceIndex index) { return c10::Device(kGPU, index < 0 ? here : index); }

c10::Stream stream_of(c10::DeviceIndex index) { return stream(index, streams.at(index)); }

Fences pending(c10::Stream stream) {
  std::lock_guard<std::mutex> lock(mutex);
  return of(stream);
}

void await(c10::Stream stream, const Fences& fences) {
  std::lock_guard<std::mutex> lock(mutex);
  auto& known = of(stream);
  known.insert(known.end(), fences.begin(), fences.end());
}

void drain(c10::Stream stream) {
  for (auto& fence : pending(stream)) fence->wait();
}

Fences pending(c10::DeviceIndex index) {
  Fences all;
  std::lock_guard<std::mutex> lock(mutex);
  for (auto known = waiting.begin(); known != waiting.end();) {
    const auto& fences = of(stream(known->first.first, known->first.second));
    if (known->first.first == index) all.insert(all.end(), fences.begin(), fences.end());
    known = fences.empty() ? waiting.erase(known) : std::next(known);
  }
  return all;
}

void drain(c10::DeviceIndex index) {
  for (auto& fence : pending(index)) fence->wait();
}

namespace {

struct Event {
  Fences fences;
  double recorded;

  double at() {  // when all was over that it stands behind
    double last = recorded;
    for (auto& fence : fences) last = std::max(last, fence->at());
    return last;
  }
  bool done() {
    return std::all_of(fences.begin(), fences.end(), [](auto& fence) { return fence->done(); });
  }
};

void check(c10::Device device) {
  TORCH_CHECK(device.index() < count(), "there is no GPU ", device, ": there are ", count());
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kGPU; }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(count());
  }

  c10::Device getDevice() const override { return gpu(-1); }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    check(device);
    here = device.index() < 0 ? here : device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { here = device.index(); }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(gpu(device.index()).index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(gpu(device.index()).index(), 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream(gpu(device.index()).index(), ++made);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto before = stream_of(next.device_index());
    streams.at(next.device_index()) = next.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override { return pending(stream).empty(); }
  void synchronizeStream(const c10::Stream& stream) const override { drain(stream); }
  void synchronizeDevice(c10::DeviceIndex index) const override { drain(gpu(index).index()); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag)
      const override {
    destroyEvent(*event, -1);
    *event = new Event{pending(stream), seconds()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) await(stream, static_cast<Event*>(event)->fences);
  }
  bool queryEvent(void* event) const override {
    return !event || static_cast<Event*>(event)->done();
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    for (auto& fence : static_cast<Event*>(event)->fences) fence->wait();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    TORCH_CHECK(queryEvent(from) && queryEvent(to), "Both events must be completed.");
    return 1e3 * (static_cast<Event*>(to)->at() - static_cast<Event*>(from)->at());
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace pretend

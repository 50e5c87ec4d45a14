// Streams of the pretended GPU. A stream is a list of fences that it has still to wait for: only
// collectives take time of their own, all else is done at once by the thread that asks for it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace pretend {

constexpr auto kGPU = c10::DeviceType::PrivateUse1;

// Something that ends once: whoever waits for it goes on then.
class Fence {
 public:
  void finish();
  bool done();
  void wait();
  double at();  // seconds on the steady clock; when it ended

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  double at_ = -1.0;
};

using Fences = std::vector<std::shared_ptr<Fence>>;

double seconds();
int count();  // of GPUs, by PRETEND_DEVICES, else 4
c10::DeviceIndex current();
c10::Device gpu(c10::DeviceIndex index);  // the current one for -1
c10::Stream stream_of(c10::DeviceIndex index);
Fences pending(c10::Stream stream);
Fences pending(c10::DeviceIndex index);  // of all streams of a GPU
void await(c10::Stream stream, const Fences& fences);  // the stream does, not this thread
void drain(c10::Stream stream);  // this thread blocks until the stream has nothing to wait for
void drain(c10::DeviceIndex index);  // the same for all streams of a GPU

}  // namespace pretend

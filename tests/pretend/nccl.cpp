// As NCCL: an operation that is not asked for as asynchronous gives no work; `wait` holds the
// current stream up, not the thread; a communicator's operations run in order, one after the other,
// on a lane of its own; two ranks that send outside a batch have a communicator for themselves; it
// is made when first used, and its making waits for both; a group that was connected eagerly has
// none such, and its messages take their turn among all it does; the CPU's tensors are refused; what
// is begun together runs together; `shutdown` waits, `abort` drops. Who is gone is not noticed.

#include "nccl.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <thread>

#include "kernels.h"
#include "streams.h"

namespace pretend {

namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Start = std::function<WorkPtr()>;  // begins an operation of gloo
using Then = std::function<void()>;
struct Operation {
  Start start;
  Then then;
};

// A communicator's thread: one item after the other.
class Lane {
 public:
  void add(std::vector<Operation> operations, Fences before, std::shared_ptr<Fence> fence) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->running) {
      state_->running = true;
      std::thread(run, state_).detach();
    }
    state_->items.push_back({std::move(operations), std::move(before), std::move(fence)});
    state_->more.notify_all();
  }

  void drop() {  // whoever waits goes on; a thread that is stuck in gloo stays there
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->over = true;
    for (auto& item : state_->items) item.fence->finish();
    if (state_->now) state_->now->finish();
    state_->items.clear();
    state_->more.notify_all();
  }

  ~Lane() { drop(); }

 private:
  struct Item {
    std::vector<Operation> operations;
    Fences before;
    std::shared_ptr<Fence> fence;
  };
  struct State {
    std::mutex mutex;
    std::condition_variable more;
    std::deque<Item> items;
    std::shared_ptr<Fence> now;
    bool running = false, over = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();

  static void carry_out(std::vector<Operation>& operations) {
    std::vector<WorkPtr> begun;
    for (auto& operation : operations) begun.push_back(operation.start());
    for (auto& work : begun) work->wait();
    for (auto& operation : operations)
      if (operation.then) operation.then();
  }

  static void run(const std::shared_ptr<State>& state) {
    for (;;) {
      Item item;
      {
        std::unique_lock<std::mutex> lock(state->mutex);
        state->more.wait(lock, [&] { return state->over || !state->items.empty(); });
        if (state->over) return;
        item = std::move(state->items.front());
        state->items.pop_front();
        state->now = item.fence;
      }
      for (auto& fence : item.before) fence->wait();
      try {
        carry_out(item.operations);
        item.operations.clear();  // its tensors may need Python, which ends when nobody waits
        item.fence->finish();
      } catch (const std::exception& error) {  // a partner is gone: NCCL waits on
        const bool gone = std::string(error.what()).find("gloo/transport") != std::string::npos;
        if (!gone) std::cerr << "pretended NCCL: " << error.what() << std::endl;
        item.fence->wait();
      }
    }
  }
};

// What an asynchronous operation gives.
class Waiting final : public c10d::Work {
 public:
  Waiting(c10::Device device, std::shared_ptr<Fence> fence, Tensors outputs, OpType type)
      : c10d::Work(-1, type), device_(device), fence_(std::move(fence)), outputs_(outputs) {
    c10::impl::VirtualGuardImpl guard(device_.type());
    auto lane = guard.getStreamFromGlobalPool(device_);
    await(lane, {fence_});
    future_ = c10::make_intrusive<at::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device_});
    auto before = guard.exchangeStream(lane);
    future_->markCompleted(c10::IValue(outputs_));
    guard.exchangeStream(before);
  }

  bool isCompleted() override { return fence_->done(); }
  bool isSuccess() const override { return true; }
  std::exception_ptr exception() const override { return nullptr; }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void synchronize() override { await(stream_of(device_.index()), {fence_}); }
  void blockCurrentStream() override { synchronize(); }
  void abort() override { TORCH_CHECK(false, "not here"); }

  bool wait(std::chrono::milliseconds timeout) override {
    synchronize();
    if (timeout != kNoTimeout) {
      const double limit = seconds() + static_cast<double>(timeout.count()) / 1e3;
      while (!fence_->done()) {
        TORCH_CHECK_WITH(DistBackendError, seconds() < limit, "a wait took longer than its limit");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    if (opType_ == OpType::BARRIER) drain(stream_of(device_.index()));
    return true;
  }

 private:
  c10::Device device_;
  std::shared_ptr<Fence> fence_;
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

Tensors on_cpu(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) all.push_back(pretend::on_cpu(tensor));
  return all;
}

Lists on_cpu(const Lists& lists) {
  Lists all;
  for (const auto& tensors : lists) all.push_back(on_cpu(tensors));
  return all;
}

Tensors flat(const Lists& lists) {
  Tensors all;
  for (const auto& tensors : lists) all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

class LikeNCCL final : public c10d::Backend {
 public:
  LikeNCCL(
      c10::intrusive_ptr<c10d::Store> store, int rank, int size,
      c10::intrusive_ptr<c10d::Backend> gloo)
      : c10d::Backend(rank, size), store_(std::move(store)), gloo_(new Held(std::move(gloo))) {}

  ~LikeNCCL() override {
    if (unfinished()) return;  // gloo's own end would wait for them
    delete gloo_;
  }

  const std::string getBackendName() const override { return "pretend_nccl"; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds) override {}
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return launched_; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  void eagerConnectSingleDevice(at::Device) override {
    connect();
    eager_ = true;
  }

  void shutdown() override {
    while (unfinished()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void abort() override {
    aborted_ = true;
    for (auto& [_, lane] : lanes_) lane.drop();
    for (auto& fence : fences_) fence->finish();
    gloo_ = nullptr;  // never ended: threads may be stuck in it
  }

  void startCoalescing() override {
    coalescing_ = true;
    together_ = {};
  }
  WorkPtr endCoalescing() override {
    coalescing_ = false;
    if (together_.operations.empty()) return nullptr;
    auto all = std::move(together_);
    return begin("", std::move(all.operations), all.device, all.async, {}, OpType::COALESCED);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    return go(OpType::BROADCAST, o, tensors, tensors,
              [](auto& gloo, auto& to, auto&, auto& o) { return gloo.broadcast(to, o); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    return go(OpType::ALLREDUCE, o, tensors, tensors,
              [](auto& gloo, auto& to, auto&, auto& o) { return gloo.allreduce(to, o); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& o) override {
    return go(OpType::COALESCED, o, tensors, tensors,
              [](auto& gloo, auto& to, auto&, auto& o) { return gloo.allreduce_coalesced(to, o); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    return go(OpType::REDUCE, o, tensors, tensors,
              [](auto& gloo, auto& to, auto&, auto& o) { return gloo.reduce(to, o); });
  }
  WorkPtr allgather(Lists& to, Tensors& from, const c10d::AllgatherOptions& o) override {
    return go(OpType::ALLGATHER, o, to, from,
              [](auto& gloo, auto& to, auto& from, auto& o) { return gloo.allgather(to, from, o); });
  }
  WorkPtr allgather_coalesced(Lists& to, Tensors& from, const c10d::AllgatherOptions& o) override {
    return go(OpType::COALESCED, o, to, from, [](auto& gloo, auto& to, auto& from, auto& o) {
      return gloo.allgather_coalesced(to, from, o);
    });
  }
  WorkPtr _allgather_base(at::Tensor& to, at::Tensor& from, const c10d::AllgatherOptions& o) override {
    return go(OpType::_ALLGATHER_BASE, o, Tensors{to}, Tensors{from},
              [](auto& gloo, auto& to, auto& from, auto& o) {
                return gloo._allgather_base(to[0], from[0], o);
              });
  }
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& to, Tensors& from, const c10d::AllgatherOptions& o) override {
    return go(OpType::COALESCED, o, to, from, [](auto& gloo, auto& to, auto& from, auto& o) {
      return gloo.allgather_into_tensor_coalesced(to, from, o);
    });
  }
  WorkPtr gather(Lists& to, Tensors& from, const c10d::GatherOptions& o) override {
    return go(OpType::GATHER, o, to, from,
              [](auto& gloo, auto& to, auto& from, auto& o) { return gloo.gather(to, from, o); });
  }
  WorkPtr scatter(Tensors& to, Lists& from, const c10d::ScatterOptions& o) override {
    return go(OpType::SCATTER, o, to, from,
              [](auto& gloo, auto& to, auto& from, auto& o) { return gloo.scatter(to, from, o); });
  }
  WorkPtr reduce_scatter(Tensors& to, Lists& from, const c10d::ReduceScatterOptions& o) override {
    return go(OpType::REDUCE_SCATTER, o, to, from, [](auto& gloo, auto& to, auto& from, auto& o) {
      return gloo.reduce_scatter(to, from, o);
    });
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& to, at::Tensor& from, const c10d::ReduceScatterOptions& o) override {
    return go(OpType::_REDUCE_SCATTER_BASE, o, Tensors{to}, Tensors{from},
              [](auto& gloo, auto& to, auto& from, auto& o) {
                return gloo._reduce_scatter_base(to[0], from[0], o);
              });
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& to, Tensors& from, const c10d::ReduceScatterOptions& o) override {
    return go(OpType::REDUCE_SCATTER_TENSOR_COALESCED, o, to, from,
              [](auto& gloo, auto& to, auto& from, auto& o) {
                return gloo.reduce_scatter_tensor_coalesced(to, from, o);
              });
  }
  WorkPtr alltoall(Tensors& to, Tensors& from, const c10d::AllToAllOptions& o) override {
    return go(OpType::ALLTOALL, o, to, from,
              [](auto& gloo, auto& to, auto& from, auto& o) { return gloo.alltoall(to, from, o); });
  }
  WorkPtr alltoall_base(
      at::Tensor& to, at::Tensor& from, std::vector<int64_t>& out, std::vector<int64_t>& in,
      const c10d::AllToAllOptions& o) override {
    return go(OpType::ALLTOALL_BASE, o, Tensors{to}, Tensors{from},
              [out, in](auto& gloo, auto& to, auto& from, auto& o) mutable {
                return gloo.alltoall_base(to[0], from[0], out, in, o);
              });
  }

  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    auto device = gpu(o.device_ids.empty() ? -1 : static_cast<c10::DeviceIndex>(o.device_ids[0]));
    auto* gloo = gloo_;
    auto work = launch("", {[gloo, o] { return (*gloo)->barrier(o); }, {}}, device, true, {},
                       OpType::BARRIER);
    if (o.asyncOp || !work) return work;
    work->wait(kNoTimeout);
    return nullptr;
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return message(OpType::SEND, tensors, to, [to, tag](c10d::Backend& gloo, Tensors& tensors) {
      return gloo.send(tensors, to, tag);
    });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return message(OpType::RECV, tensors, from, [from, tag](c10d::Backend& gloo, Tensors& tensors) {
      return gloo.recv(tensors, from, tag);
    });
  }

 private:
  using Held = c10::intrusive_ptr<c10d::Backend>;
  struct Together {
    std::vector<Operation> operations;
    c10::Device device{kGPU, 0};
    bool async = false;
  };

  c10::intrusive_ptr<c10d::Store> store_;
  Held* gloo_;
  std::map<std::string, Lane> lanes_;  // by communicator: "" is the group's, else "0:1"
  Fences fences_;
  Together together_;
  bool coalescing_ = false, eager_ = false;
  std::atomic<bool> aborted_{false};
  uint64_t launched_ = 0;

  bool unfinished() {
    auto over = [](const std::shared_ptr<Fence>& fence) { return fence->done(); };
    fences_.erase(std::remove_if(fences_.begin(), fences_.end(), over), fences_.end());
    return !fences_.empty();
  }

  // Waits for the other members, as the making of a communicator does: nothing can end it.
  void meet(const std::string& name, const std::vector<int>& members) {
    store_->set(name + " " + std::to_string(getRank()), std::vector<uint8_t>{1});
    std::vector<std::string> keys;
    for (int member : members) keys.push_back(name + " " + std::to_string(member));
    while (!store_->check(keys)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  Lane& lane(const std::string& name, const std::vector<int>& members) {
    if (auto known = lanes_.find(name); known != lanes_.end()) return known->second;
    meet("communicator " + name, members);
    return lanes_[name];
  }

  Lane& connect() {
    std::vector<int> everybody;
    for (int member = 0; member < getSize(); ++member) everybody.push_back(member);
    return lane("", everybody);
  }

  void check(const Tensors& tensors) {
    TORCH_CHECK_WITH(DistBackendError, !aborted_, "NCCL communicator was aborted.");
    for (const auto& tensor : tensors) {
      TORCH_CHECK(tensor.device().type() == kGPU, "Tensors must be on a GPU and dense");
      TORCH_CHECK(tensor.is_non_overlapping_and_dense(), "Tensors must be contiguous");
      TORCH_CHECK(tensor.device() == tensors[0].device(), "Tensors must be on one GPU");
    }
  }

  static Tensors listed(const Tensors& tensors) { return tensors; }
  static Tensors listed(const Lists& lists) { return flat(lists); }

  // One collective: `call` starts it with the tensors as the CPU sees them.
  template <class Options, class To, class From, class Call_>
  WorkPtr go(OpType type, const Options& options, const To& to, const From& from, Call_ call) {
    Tensors outputs = listed(to), all = outputs;
    for (auto& tensor : listed(from)) all.push_back(tensor);
    check(all);
    auto ours = std::make_shared<std::pair<To, From>>(on_cpu(to), on_cpu(from));
    auto changed = options;
    Then then;
    if constexpr (std::is_base_of_v<c10d::AllreduceOptions, Options> ||
                  std::is_same_v<Options, c10d::ReduceOptions> ||
                  std::is_same_v<Options, c10d::ReduceScatterOptions>) {
      if (options.reduceOp == c10d::ReduceOp::AVG) {  // gloo has none
        changed.reduceOp = c10d::ReduceOp::SUM;
        then = [ours, size = getSize()] {
          for (auto& tensor : listed(ours->first)) tensor.div_(size);
        };
      }
    }
    auto* gloo = gloo_;
    auto start = [gloo, ours, changed, call]() mutable {
      return call(**gloo, ours->first, ours->second, changed);
    };
    return launch("", {start, then}, all.at(0).device(), options.asyncOp, outputs, type);
  }

  template <class Call_>
  WorkPtr message(OpType type, Tensors& tensors, int peer, Call_ call) {
    check(tensors);
    auto* gloo = gloo_;
    auto start = [gloo, ours = on_cpu(tensors), call]() mutable { return call(**gloo, ours); };
    const int low = std::min(peer, getRank()), high = std::max(peer, getRank());
    auto pair = std::to_string(low) + ":" + std::to_string(high);
    return launch(coalescing_ || eager_ ? "" : pair, {start, {}}, tensors[0].device(), true, tensors, type,
                  {low, high});
  }

  WorkPtr launch(const std::string& name, Operation operation, c10::Device device, bool async,
                 Tensors outputs, OpType type, const std::vector<int>& pair = {}) {
    ++launched_;
    if (!coalescing_) {
      if (!name.empty()) lane(name, pair);
      return begin(name, {std::move(operation)}, device, async, std::move(outputs), type);
    }
    together_.operations.push_back(std::move(operation));
    together_.device = device;
    together_.async |= async;
    return nullptr;
  }

  WorkPtr begin(const std::string& name, std::vector<Operation> operations, c10::Device device,
                bool async, Tensors outputs, OpType type) {
    auto& communicator = name.empty() ? connect() : lanes_.at(name);
    auto stream = stream_of(device.index());
    auto fence = std::make_shared<Fence>();
    unfinished();  // forgets those that are over
    fences_.push_back(fence);
    communicator.add(std::move(operations), pending(stream), fence);
    if (async) return c10::make_intrusive<Waiting>(device, fence, std::move(outputs), type);
    await(stream, {fence});
    return nullptr;
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> like_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<c10d::Backend>& gloo) {
  return c10::make_intrusive<LikeNCCL>(store, rank, size, gloo);
}

}  // namespace pretend

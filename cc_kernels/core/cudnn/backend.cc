#include "cc_kernels/core/cudnn/backend.h"

#include <cuda.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/convolution.h"
#include "cc_kernels/core/cudnn/handle_pool.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/lru_cache.h"

namespace tf_interop {
namespace {

// The most outcomes of Prepare to keep, so that a program whose shapes keep changing does not fill
// memory with plans. Far more than can be enqueued and not have run yet: a plan is destroyed with
// its last holder, which must not happen while it runs.
constexpr size_t kMostPrepared = 4096;

// Whether somebody captures the work that this thread enqueues (CaptureScope).
thread_local bool is_captured = false;

// A mark's event is for timing; nobody waits for it.
struct CudaTimeMark : TimeMark {
  CudaTimeMark(const CudaDriver& driver, CUcontext context) : driver_(driver), context_(context) {}
  ~CudaTimeMark() override {
    ScopedContext scope(driver_, context_);
    if (scope.status().ok() && event_ != nullptr) driver_.cuEventDestroy(event_);
  }

  // The backend's context must be current.
  Status Record(CUstream stream) {
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver_, cuEventCreate, &event_, CU_EVENT_DEFAULT));
    return TF_INTEROP_CALL(driver_, cuEventRecord, event_, stream);
  }

  // Time counts from another mark or, for a device's first, from the host's clock.
  std::shared_ptr<const CudaTimeMark> since;
  int64_t ns = 0;

  std::optional<int64_t> ReadNs() const override {
    ScopedContext scope(driver_, context_);
    if (!scope.status().ok()) return std::nullopt;
    double since_first_ms = 0;
    const CudaTimeMark* mark = this;
    for (; mark->since != nullptr; mark = mark->since.get()) {
      float elapsed_ms = 0;
      if (driver_.cuEventQuery(mark->event_) != CUDA_SUCCESS ||
          driver_.cuEventElapsedTime(&elapsed_ms, mark->since->event_, mark->event_) !=
              CUDA_SUCCESS) {
        return std::nullopt;
      }
      since_first_ms += static_cast<double>(elapsed_ms);
    }
    return mark->ns + static_cast<int64_t>(1e6 * since_first_ms);
  }

 private:
  const CudaDriver& driver_;
  const CUcontext context_;
  CUevent event_ = nullptr;
};

class CudnnStreamGroup : public StreamGroup {
 public:
  CudnnStreamGroup(const CudaDriver& driver, CUcontext context, int priority)
      : driver_(driver), context_(context), priority_(priority) {}

  ~CudnnStreamGroup() override {
    ScopedContext scope(driver_, context_);
    if (!scope.status().ok()) return;
    for (const Event made : {fork_event, join_event}) {
      if (made != nullptr) driver_.cuEventDestroy(static_cast<CUevent>(made));
    }
    if (stream != nullptr) driver_.cuStreamDestroy(static_cast<CUstream>(stream));
  }

  Status Create() {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    for (Event* const event : {&fork_event, &join_event}) {
      CUevent made = nullptr;
      // Events without timing cost less.
      TF_INTEROP_RETURN_IF_ERROR(
          TF_INTEROP_CALL(driver_, cuEventCreate, &made, CU_EVENT_DISABLE_TIMING));
      *event = made;
    }
    CUstream made = nullptr;
    // Non-blocking: work on the legacy default stream must not hold up the lanes.
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver_, cuStreamCreateWithPriority, &made,
                                               CU_STREAM_NON_BLOCKING, priority_));
    stream = made;
    return Status::Ok();
  }

  int priority() const { return priority_; }

 private:
  const CudaDriver& driver_;
  const CUcontext context_;
  const int priority_;
};

class CudnnBackend : public Backend {
 public:
  CudnnBackend(const CudaDriver& driver, const CudnnLibrary& library, CUcontext context)
      : driver_(driver), library_(library), context_(context), handles_(driver, library) {
    ScopedContext scope(driver_, context_);
    HandlePool::Lease first;
    if (!scope.status().ok()) return;
    (void)handles_.Take(std::nullopt, &first);  // remembers a failure
    driver_.cuCtxGetStreamPriorityRange(&lowest_priority_, &highest_priority_);
  }

  // Every outcome is kept, refusals too. A refusal that may pass is retried after a wait that
  // doubles each time, because cuDNN takes as long to refuse as to make a plan. Two threads may
  // compile the same plan at once; the first to finish wins.
  Status Prepare(const Convolution& convolution, const std::string& algorithm,
                 const PrepareOptions& options,
                 std::shared_ptr<const PreparedConvolution>* prepared) override {
    PrepareKey key = {convolution, algorithm, options};
    key.options.deterministic |= IsCudnnToBeDeterministic();
    std::optional<PrepareOutcome> outcome = prepared_.Find(key);
    if (!outcome || outcome->IsOver()) {
      // No lock is held: compiling a plan may take seconds.
      PrepareOutcome made;
      made.status = PrepareAnew(key, &made.prepared);
      if (outcome) made.retry = outcome->retry;
      if (!IsLasting(made.status)) made.retry.Refuse();
      outcome = prepared_.Insert(key, std::move(made), [](const PrepareOutcome& there) {
        return !IsLasting(there.status);
      });
    }
    *prepared = outcome->prepared;
    return outcome->status;
  }

  void ForgetPrepared() override {
    prepared_.ForgetIf([](const PrepareOutcome& each) { return each.prepared.use_count() == 1; });
  }

  Status ListAlgorithms(const Convolution& convolution, AlgorithmScope scope, bool allow_tf32,
                        std::vector<std::string>* algorithms) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    HandlePool::Lease handle;
    TF_INTEROP_RETURN_IF_ERROR(handles_.Take(std::nullopt, &handle));
    return ListCudnnAlgorithms(library_, handle->handle, convolution, scope, allow_tf32,
                               algorithms);
  }

  Status Acquire(int asked, std::unique_ptr<StreamGroup>* group) override {
    const int priority = std::clamp(asked, highest_priority_, lowest_priority_);
    {
      std::lock_guard<std::mutex> lock(groups_mutex_);
      if (!captured_groups_.empty()) FreeGroupsOfEndedCaptures();
      auto& free = free_groups_[priority];
      if (!free.empty()) {
        *group = std::move(free.back());
        free.pop_back();
        return Status::Ok();
      }
    }
    auto made = std::make_unique<CudnnStreamGroup>(driver_, context_, priority);
    TF_INTEROP_RETURN_IF_ERROR(made->Create());
    *group = std::move(made);
    return Status::Ok();
  }

  void Release(std::unique_ptr<StreamGroup> group) override {
    std::lock_guard<std::mutex> lock(groups_mutex_);
    if (is_captured) {
      captured_groups_.push_back(std::move(group));
    } else {
      MakeFree(std::move(group));
    }
  }

  Status Enter(void** outer) override {
    CUcontext outer_context = nullptr;
    const Status status = EnterContext(driver_, context_, &outer_context);
    *outer = outer_context;
    return status;
  }

  void Leave(void* outer) override { LeaveContext(driver_, static_cast<CUcontext>(outer)); }

  // A float cannot represent a long time exactly, so the marks of a call count from its first one.
  // Only the very first mark waits for the stream.
  Status Mark(Stream stream, const std::shared_ptr<const TimeMark>& since,
              std::shared_ptr<const TimeMark>* mark) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    const auto made = std::make_shared<CudaTimeMark>(driver_, context_);
    TF_INTEROP_RETURN_IF_ERROR(made->Record(static_cast<CUstream>(stream)));
    if (since != nullptr) {
      made->since = std::static_pointer_cast<const CudaTimeMark>(since);
    } else {
      std::lock_guard<std::mutex> lock(first_mark_mutex_);
      if (first_mark_ == nullptr) {
        TF_INTEROP_RETURN_IF_ERROR(
            TF_INTEROP_CALL(driver_, cuStreamSynchronize, static_cast<CUstream>(stream)));
        made->ns = NowNs();
        first_mark_ = made;
      } else {
        made->since = first_mark_;
      }
    }
    *mark = made;
    return Status::Ok();
  }

  Status Record(Event event, Stream stream) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    return TF_INTEROP_CALL(driver_, cuEventRecord, static_cast<CUevent>(event),
                           static_cast<CUstream>(stream));
  }

  Status Wait(Stream stream, Event event) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    return TF_INTEROP_CALL(driver_, cuStreamWaitEvent, static_cast<CUstream>(stream),
                           static_cast<CUevent>(event), CU_EVENT_WAIT_DEFAULT);
  }

  Status Synchronize(Stream stream) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    return TF_INTEROP_CALL(driver_, cuStreamSynchronize, static_cast<CUstream>(stream));
  }

  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, Stream stream) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    HandlePool::Lease handle;
    TF_INTEROP_RETURN_IF_ERROR(handles_.Take(static_cast<CUstream>(stream), &handle));
    return static_cast<const CudnnConvolution&>(prepared).Enqueue(
        {handle->handle, buffers, workspace});
  }

  Status TransformFilter(const PreparedConvolution& prepared, const void* filter, void* transformed,
                         Stream stream) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    HandlePool::Lease handle;
    TF_INTEROP_RETURN_IF_ERROR(handles_.Take(static_cast<CUstream>(stream), &handle));
    return static_cast<const CudnnConvolution&>(prepared).EnqueueFilterTransform(
        handle->handle, filter, transformed);
  }

  Status FillZero(void* data, size_t bytes, Stream stream) override {
    if (bytes == 0) return Status::Ok();
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    return TF_INTEROP_CALL(driver_, cuMemsetD8Async, reinterpret_cast<CUdeviceptr>(data), 0, bytes,
                           static_cast<CUstream>(stream));
  }

  Status CopyRows(const void* source, size_t source_pitch, void* destination,
                  size_t destination_pitch, size_t row_bytes, size_t rows, Stream stream) override {
    if (row_bytes == 0 || rows == 0) return Status::Ok();
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = reinterpret_cast<CUdeviceptr>(source);
    copy.srcPitch = source_pitch;
    copy.dstDevice = reinterpret_cast<CUdeviceptr>(destination);
    copy.dstPitch = destination_pitch;
    copy.WidthInBytes = row_bytes;
    copy.Height = rows;
    return TF_INTEROP_CALL(driver_, cuMemcpy2DAsync, &copy, static_cast<CUstream>(stream));
  }

  bool IsCaptured() const override { return is_captured; }

  bool CanCapture() const override { return true; }

  Status BeginCapture(Stream stream) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    return TF_INTEROP_CALL(driver_, cuStreamBeginCapture, static_cast<CUstream>(stream),
                           CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  }

  // The graph's last owner destroys it. CUDA itself keeps it until its launches have ended.
  Status EndCapture(Stream stream, CapturedWork* captured) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    CUgraph graph = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(
        TF_INTEROP_CALL(driver_, cuStreamEndCapture, static_cast<CUstream>(stream), &graph));
    CUgraphExec made = nullptr;
    // Without this flag, kernels get the priority of the stream that the graph is launched on.
    const Status status = TF_INTEROP_CALL(driver_, cuGraphInstantiateWithFlags, &made, graph,
                                          CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    driver_.cuGraphDestroy(graph);
    TF_INTEROP_RETURN_IF_ERROR(status);
    captured->reset(made, [this](CUgraphExec graph_exec) {
      ScopedContext scope(driver_, context_);
      if (scope.status().ok()) driver_.cuGraphExecDestroy(graph_exec);
    });
    return Status::Ok();
  }

  Status Replay(const CapturedWork& work, Stream stream) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    return TF_INTEROP_CALL(driver_, cuGraphLaunch, static_cast<CUgraphExec>(work.get()),
                           static_cast<CUstream>(stream));
  }

 private:
  struct PrepareKey {
    Convolution convolution;
    std::string algorithm;
    PrepareOptions options;

    bool operator==(const PrepareKey& other) const {
      return convolution == other.convolution && algorithm == other.algorithm &&
             options == other.options;
    }
  };
  struct PrepareOutcome {
    Status status;
    std::shared_ptr<const PreparedConvolution> prepared;
    RetryTimer retry;  // for a refusal that may pass

    bool IsOver() const { return !IsLasting(status) && retry.IsOver(); }
  };

  // Prepares regardless of earlier outcomes.
  Status PrepareAnew(const PrepareKey& key, std::shared_ptr<const PreparedConvolution>* prepared) {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    HandlePool::Lease handle;
    TF_INTEROP_RETURN_IF_ERROR(handles_.Take(std::nullopt, &handle));
    std::shared_ptr<const CudnnConvolution> made;
    TF_INTEROP_RETURN_IF_ERROR(PrepareCudnnConvolution(library_, handle->handle, key.convolution,
                                                       key.algorithm, key.options, &made));
    // cuDNN's descriptors must be destroyed with their context current, whichever thread holds the
    // plan last.
    prepared->reset(made.get(), [this, owned = made](const CudnnConvolution*) mutable {
      ScopedContext scope(driver_, context_);
      owned.reset();
    });
    return Status::Ok();
  }

  // Both require groups_mutex_.
  void MakeFree(std::unique_ptr<StreamGroup> group) {
    const int priority = static_cast<CudnnStreamGroup*>(group.get())->priority();
    free_groups_[priority].push_back(std::move(group));
  }
  void FreeGroupsOfEndedCaptures() {
    const auto ended =
        std::partition(captured_groups_.begin(), captured_groups_.end(), [&](const auto& group) {
          return IsCapturing(driver_, static_cast<CUstream>(group->stream));
        });
    for (auto group = ended; group != captured_groups_.end(); ++group) MakeFree(std::move(*group));
    captured_groups_.erase(ended, captured_groups_.end());
  }

  const CudaDriver& driver_;
  const CudnnLibrary& library_;
  const CUcontext context_;
  HandlePool handles_;

  // Priorities outside the device's range are clamped, so that their streams are interchangeable.
  // The highest priority is the lowest number.
  int highest_priority_ = 0, lowest_priority_ = 0;

  std::mutex groups_mutex_;                                               // guards the next two
  std::map<int, std::vector<std::unique_ptr<StreamGroup>>> free_groups_;  // by priority
  std::vector<std::unique_ptr<StreamGroup>> captured_groups_;             // in somebody's capture

  std::mutex first_mark_mutex_;
  std::shared_ptr<const CudaTimeMark> first_mark_;  // guarded by first_mark_mutex_

  LruCache<PrepareKey, PrepareOutcome> prepared_{kMostPrepared};
};

Status GetLibraries(const CudaDriver** driver, const CudnnLibrary** library) {
  TF_INTEROP_RETURN_IF_ERROR(CudaDriver::Get(driver));
  return CudnnLibrary::Get(library);
}

Backend* BackendOf(CUcontext context, const CudaDriver& driver, const CudnnLibrary& library) {
  // Most calls take no lock: their thread last used the same context.
  thread_local std::pair<CUcontext, Backend*> last;
  if (last.second == nullptr || last.first != context) {
    static auto* mutex = new std::mutex();
    static auto* backends = new std::unordered_map<CUcontext, Backend*>();
    std::lock_guard<std::mutex> lock(*mutex);
    Backend*& entry = (*backends)[context];
    if (entry == nullptr) entry = new CudnnBackend(driver, library, context);
    last = {context, entry};
  }
  return last.second;
}

}  // namespace

Status FindCudnnBackend(CUstream_st* caller, Backend** backend) {
  const CudaDriver* driver = nullptr;
  const CudnnLibrary* library = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(GetLibraries(&driver, &library));
  CUcontext context = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(*driver, cuStreamGetCtx, caller, &context));
  *backend = BackendOf(context, *driver, *library);
  return Status::Ok();
}

Status FindCudnnBackendOf(int device, Backend** backend) {
  const CudaDriver* driver = nullptr;
  const CudnnLibrary* library = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(GetLibraries(&driver, &library));
  static auto* mutex = new std::mutex();
  static auto* contexts = new std::unordered_map<int, CUcontext>();
  std::lock_guard<std::mutex> lock(*mutex);
  CUcontext& context = (*contexts)[device];
  if (context == nullptr) {
    CUdevice handle = 0;
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(*driver, cuDeviceGet, &handle, device));
    TF_INTEROP_RETURN_IF_ERROR(
        TF_INTEROP_CALL(*driver, cuDevicePrimaryCtxRetain, &context, handle));
  }
  *backend = BackendOf(context, *driver, *library);
  return Status::Ok();
}

Status CountSms(int device, int* count) {
  const CudaDriver* driver = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(CudaDriver::Get(&driver));
  CUdevice handle = 0;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(*driver, cuDeviceGet, &handle, device));
  return TF_INTEROP_CALL(*driver, cuDeviceGetAttribute, count,
                         CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle);
}

CaptureScope::CaptureScope(CUstream_st* caller) {
  const CudaDriver* driver = nullptr;
  if (!CudaDriver::Get(&driver).ok() || !IsCapturing(*driver, caller)) return;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (driver->cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS) return;
  driver_ = driver;
  outer_mode_ = mode;
  is_captured = true;
}

CaptureScope::~CaptureScope() {
  if (driver_ == nullptr) return;
  is_captured = false;
  auto mode = static_cast<CUstreamCaptureMode>(outer_mode_);
  (void)driver_->cuThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace tf_interop

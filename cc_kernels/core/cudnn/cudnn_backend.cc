#include "cc_kernels/core/cudnn/cudnn_backend.h"

#include <cuda.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "cc_kernels/core/cudnn/algorithm_list.h"
#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/prepare_cudnn_convolution.h"
#include "cc_kernels/core/cudnn/sm_partition.h"

namespace tf_interop {
namespace {

class CudaEvent : public Event {
 public:
  explicit CudaEvent(const CudaDriver& driver) : driver_(driver) {}
  // With the context current that the event is to be recorded in.
  Status Create() {
    // Without timing, recording and waiting cost less.
    return driver_.Check(driver_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }

  // With the same context current.
  void Destroy() {
    // A failure to free is nothing that a caller could act on.
    if (event_ != nullptr) (void)driver_.cuEventDestroy(event_);
  }

  CUevent get() const { return event_; }

 private:
  const CudaDriver& driver_;
  CUevent event_ = nullptr;
};

// A stream of its own, a cuDNN handle, and the two events of the stream contract.
class CudnnStreamGroup : public StreamGroup {
 public:
  // `green` is null for a stream of the backend's own context.
  CudnnStreamGroup(const CudaDriver& driver, const CudnnLibrary& library, CUcontext context,
                   GreenContext* green, int priority)
      : driver_(driver),
        library_(library),
        context_(context),
        green_(green),
        priority_(priority),
        fork_event_(driver),
        join_event_(driver) {}

  ~CudnnStreamGroup() override {
    {
      ScopedContext scope(driver_, context_);
      if (!scope.status().ok()) return;
      fork_event_.Destroy();
    }
    ScopedContext scope(driver_, execution());
    if (!scope.status().ok()) return;
    // A failure to free is nothing that a caller could act on.
    if (handle_ != nullptr) (void)library_.cudnnDestroy(handle_);
    join_event_.Destroy();
    if (stream_ != nullptr) (void)driver_.cuStreamDestroy(stream_);
  }

  Status Create() {
    {
      // It is recorded on the caller's stream.
      ScopedContext scope(driver_, context_);
      TF_INTEROP_RETURN_IF_ERROR(scope.status());
      TF_INTEROP_RETURN_IF_ERROR(fork_event_.Create());
    }
    ScopedContext scope(driver_, execution());
    TF_INTEROP_RETURN_IF_ERROR(scope.status());
    TF_INTEROP_RETURN_IF_ERROR(CreateStream());
    TF_INTEROP_RETURN_IF_ERROR(join_event_.Create());
    return CreateHandle();
  }

  Stream stream() const override { return stream_; }
  Event* fork_event() override { return &fork_event_; }
  Event* join_event() override { return &join_event_; }

  int sm_count() const override { return green_ == nullptr ? 0 : green_->sm_count(); }

  GreenContext* green() const { return green_; }
  int priority() const { return priority_; }
  cudnnHandle_t handle() const { return handle_; }

  // Makes what is launched with the handle go to `stream`. Setting the stream costs more than
  // looking whether it is set.
  Status Direct(CUstream stream) {
    if (is_directed_ && handle_stream_ == stream) return Status::Ok();
    is_directed_ = false;
    TF_INTEROP_RETURN_IF_ERROR(
        library_.Check(library_.cudnnSetStream(handle_, stream), "cudnnSetStream"));
    handle_stream_ = stream;
    is_directed_ = true;
    return Status::Ok();
  }

 private:
  ExecutionContext execution() const {
    return green_ == nullptr ? ExecutionContext{context_, nullptr} : green_->execution();
  }

  Status CreateStream() {
    if (green_ != nullptr) return green_->CreateStream(priority_, &stream_);
    // Non-blocking: work on the legacy default stream must not hold the lanes up.
    return driver_.Check(
        driver_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, priority_),
        "cuStreamCreateWithPriority");
  }

  Status CreateHandle() {
    // One at a time: cuDNN asks that its first handle be complete before others are created.
    static auto* mutex = new std::mutex();
    std::lock_guard<std::mutex> lock(*mutex);
    Status status = library_.Check(library_.cudnnCreate(&handle_), "cudnnCreate");
    if (status.ok()) return status;
    handle_ = nullptr;
    return Status(status.code(),
                  status.message() +
                      " A handle needs device memory that TensorFlow's allocator does not hold: "
                      "if it holds all of it, turn on "
                      "tf.config.experimental.set_memory_growth or set a memory limit.");
  }

  const CudaDriver& driver_;
  const CudnnLibrary& library_;
  const CUcontext context_;
  GreenContext* const green_;
  const int priority_;
  CUstream stream_ = nullptr;
  cudnnHandle_t handle_ = nullptr;
  CUstream handle_stream_ = nullptr;
  bool is_directed_ = false;
  CudaEvent fork_event_;
  CudaEvent join_event_;
};

// A lack of memory, or of a library that an engine needs, may pass.
bool IsLasting(const Status& status) {
  return status.code() != StatusCode::kResourceExhausted &&
         status.code() != StatusCode::kUnavailable;
}

// Null stands for what belongs to another backend.
Status CheckOwn(const CudnnConvolution* convolution, const CudnnStreamGroup* group) {
  if (convolution != nullptr && group != nullptr) return Status::Ok();
  return InvalidArgument(
      "Expected a convolution and a stream group of the cudnn backend, got another backend's.");
}

}  // namespace

CudnnBackend::CudnnBackend(const CudaDriver& driver, const CudnnLibrary& library, CUctx_st* context)
    : driver_(driver), library_(library), context_(context) {}

CudnnBackend::~CudnnBackend() = default;

Status CudnnBackend::ForStream(CUstream_st* caller, CudnnBackend** backend) {
  const CudaDriver* driver = nullptr;
  const CudnnLibrary* library = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(CudaDriver::Get(&driver));
  TF_INTEROP_RETURN_IF_ERROR(CudnnLibrary::Get(&library));
  CUcontext context = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(
      driver->Check(driver->cuStreamGetCtx(caller, &context), "cuStreamGetCtx"));

  static auto* mutex = new std::mutex();
  static auto* backends = new std::unordered_map<CUcontext, CudnnBackend*>();
  std::lock_guard<std::mutex> lock(*mutex);
  CudnnBackend*& entry = (*backends)[context];
  if (entry == nullptr) entry = new CudnnBackend(*driver, *library, context);
  *backend = entry;
  return Status::Ok();
}

bool CudnnBackend::PrepareKey::operator==(const PrepareKey& other) const {
  return convolution == other.convolution && algorithm == other.algorithm &&
         workspace_limit_bytes == other.workspace_limit_bytes && allow_tf32 == other.allow_tf32 &&
         deterministic == other.deterministic;
}

size_t CudnnBackend::PrepareKeyHash::operator()(const PrepareKey& key) const {
  const size_t convolution = ConvolutionHash()(key.convolution);
  return convolution ^ (std::hash<std::string>()(key.algorithm) * 31) ^
         (key.workspace_limit_bytes * 4 + (key.allow_tf32 ? 2 : 0) + (key.deterministic ? 1 : 0));
}

Status CudnnBackend::Prepare(const Convolution& convolution, const std::string& algorithm,
                             size_t workspace_limit_bytes,
                             std::shared_ptr<const PreparedConvolution>* prepared) {
  const PrepareKey key = {convolution, algorithm, workspace_limit_bytes, allow_tf32_,
                          deterministic_};
  {
    std::lock_guard<std::mutex> lock(prepared_mutex_);
    if (const PrepareOutcome* found = prepared_.Find(key)) {
      *prepared = found->prepared;
      return found->status;
    }
  }
  // Unlocked: compiling a plan may take seconds, and other convolutions need not wait for it.
  PrepareOutcome outcome = PrepareAnew(key);
  if (!IsLasting(outcome.status)) return outcome.status;
  PrepareOutcome forgotten;  // destroyed behind the lock
  std::lock_guard<std::mutex> lock(prepared_mutex_);
  const PrepareOutcome& kept = *prepared_.Insert(key, std::move(outcome), &forgotten);
  *prepared = kept.prepared;
  return kept.status;
}

Status CudnnBackend::WithHandle(const std::function<Status(cudnnContext*)>& use) {
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  std::unique_ptr<StreamGroup> group;
  TF_INTEROP_RETURN_IF_ERROR(Acquire(&group));
  const Status status = use(static_cast<CudnnStreamGroup*>(group.get())->handle());
  Release(std::move(group));
  return status;
}

CudnnBackend::PrepareOutcome CudnnBackend::PrepareAnew(const PrepareKey& key) {
  std::shared_ptr<const CudnnConvolution> prepared;
  CudnnPrepareOptions options;
  options.allow_tf32 = key.allow_tf32;
  options.deterministic = key.deterministic;
  const Status status = WithHandle([&](cudnnHandle_t handle) {
    return PrepareCudnnConvolution(driver_, library_, handle, key.convolution, key.algorithm,
                                   key.workspace_limit_bytes, options, &prepared);
  });
  if (!status.ok()) return {status, nullptr};
  return {status, DestroyedInContext(std::move(prepared))};
}

std::shared_ptr<const PreparedConvolution> CudnnBackend::DestroyedInContext(
    std::shared_ptr<const PreparedConvolution> prepared) const {
  const PreparedConvolution* const plan = prepared.get();
  return {plan, [this, owned = std::move(prepared)](const PreparedConvolution*) mutable {
            ScopedContext scope(driver_, context_);
            owned.reset();
          }};
}

Status CudnnBackend::ListAlgorithms(const Convolution& convolution, AlgorithmScope scope,
                                    std::vector<std::string>* algorithms) {
  return WithHandle([&](cudnnHandle_t handle) {
    return ListCudnnAlgorithms(library_, handle, convolution, scope, allow_tf32_, algorithms);
  });
}

Status CudnnBackend::Restore(const Convolution& convolution, const std::string& serialized,
                             std::shared_ptr<const PreparedConvolution>* prepared) {
  std::shared_ptr<const CudnnConvolution> restored;
  CudnnPrepareOptions options;
  options.allow_tf32 = allow_tf32_;
  options.deterministic = deterministic_;
  TF_INTEROP_RETURN_IF_ERROR(WithHandle([&](cudnnHandle_t handle) {
    return RestoreCudnnConvolution(driver_, library_, handle, convolution, serialized, options,
                                   &restored);
  }));
  *prepared = DestroyedInContext(std::move(restored));
  return Status::Ok();
}

Status CudnnBackend::Acquire(const StreamGroupOptions& options,
                             std::unique_ptr<StreamGroup>* group) {
  GroupKind kind;
  TF_INTEROP_RETURN_IF_ERROR(FindGroupKind(options, &kind));
  {
    std::lock_guard<std::mutex> lock(groups_mutex_);
    auto& idle = idle_groups_[kind];
    if (!idle.empty()) {
      *group = std::move(idle.back());
      idle.pop_back();
      return Status::Ok();
    }
  }
  const auto [green, priority] = kind;
  auto made = std::make_unique<CudnnStreamGroup>(driver_, library_, context_, green, priority);
  TF_INTEROP_RETURN_IF_ERROR(made->Create());
  if (green != nullptr) {
    std::lock_guard<std::mutex> lock(groups_mutex_);
    green_streams_[made->stream()] = green;
  }
  *group = std::move(made);
  return Status::Ok();
}

void CudnnBackend::Release(std::unique_ptr<StreamGroup> group) {
  if (!group) return;
  const auto* leased = static_cast<const CudnnStreamGroup*>(group.get());
  std::lock_guard<std::mutex> lock(groups_mutex_);
  idle_groups_[{leased->green(), leased->priority()}].push_back(std::move(group));
}

Status CudnnBackend::FindGroupKind(const StreamGroupOptions& options, GroupKind* kind) {
  *kind = {nullptr, options.priority};
  TF_INTEROP_RETURN_IF_ERROR(ClampPriority(&kind->second));
  const std::vector<int>& counts = options.partition;
  if (counts.empty()) return Status::Ok();
  const int lane = options.partition_index;
  if (lane < 0 || static_cast<size_t>(lane) >= counts.size()) {
    return InvalidArgument("Expected the place of a lane among " + std::to_string(counts.size()) +
                           " SM counts, got " + std::to_string(lane) + ".");
  }
  return FindGreenContext(counts, static_cast<size_t>(lane), &kind->first);
}

Status CudnnBackend::FindGreenContext(const std::vector<int>& counts, size_t lane,
                                      GreenContext** green) {
  std::lock_guard<std::mutex> lock(partitions_mutex_);
  auto found = partitions_.find(counts);
  if (found == partitions_.end()) {
    PartitionOutcome made;
    made.status = SmPartition::Create(driver_, context_, counts, &made.partition);
    if (!made.status.ok() && !IsLasting(made.status)) return made.status;
    found = partitions_.emplace(counts, std::move(made)).first;
  }
  const PartitionOutcome& outcome = found->second;
  if (outcome.status.ok()) *green = outcome.partition->of_lane(lane);
  return outcome.status;
}

// Streams that differ only in what the device makes the same are interchangeable.
Status CudnnBackend::ClampPriority(int* priority) {
  if (*priority == 0) return Status::Ok();
  std::lock_guard<std::mutex> lock(priorities_mutex_);
  if (priorities_ == nullptr) {
    ScopedContext scope(driver_, context_);
    TF_INTEROP_RETURN_IF_ERROR(scope.status());
    PriorityRange range;
    TF_INTEROP_RETURN_IF_ERROR(
        driver_.Check(driver_.cuCtxGetStreamPriorityRange(&range.lowest, &range.highest),
                      "cuCtxGetStreamPriorityRange"));
    priorities_ = std::make_unique<PriorityRange>(range);
  }
  *priority = std::min(std::max(*priority, priorities_->highest), priorities_->lowest);
  return Status::Ok();
}

ExecutionContext CudnnBackend::ExecutionOf(Stream stream) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  const auto found = green_streams_.find(stream);
  if (found == green_streams_.end()) return {context_, nullptr};
  return found->second->execution();
}

Status CudnnBackend::Record(Event* event, Stream stream) {
  ScopedContext scope(driver_, ExecutionOf(stream));
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  return driver_.Check(
      driver_.cuEventRecord(static_cast<CudaEvent*>(event)->get(), static_cast<CUstream>(stream)),
      "cuEventRecord");
}

Status CudnnBackend::Wait(Stream stream, Event* event) {
  ScopedContext scope(driver_, ExecutionOf(stream));
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  return driver_.Check(
      driver_.cuStreamWaitEvent(static_cast<CUstream>(stream),
                                static_cast<CudaEvent*>(event)->get(), CU_EVENT_WAIT_DEFAULT),
      "cuStreamWaitEvent");
}

Status CudnnBackend::Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                            void* workspace, StreamGroup* group, Stream stream) {
  const auto* convolution = dynamic_cast<const CudnnConvolution*>(&prepared);
  auto* leased = dynamic_cast<CudnnStreamGroup*>(group);
  TF_INTEROP_RETURN_IF_ERROR(CheckOwn(convolution, leased));
  ScopedContext scope(driver_, ExecutionOf(stream));
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  auto* const cuda_stream = static_cast<CUstream>(stream);
  TF_INTEROP_RETURN_IF_ERROR(leased->Direct(cuda_stream));
  return convolution->Enqueue({leased->handle(), cuda_stream, buffers, workspace});
}

Status CudnnBackend::TransformFilter(const PreparedConvolution& prepared, const void* filter,
                                     void* transformed, StreamGroup* group, Stream stream) {
  const auto* convolution = dynamic_cast<const CudnnConvolution*>(&prepared);
  auto* leased = dynamic_cast<CudnnStreamGroup*>(group);
  TF_INTEROP_RETURN_IF_ERROR(CheckOwn(convolution, leased));
  ScopedContext scope(driver_, ExecutionOf(stream));
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  TF_INTEROP_RETURN_IF_ERROR(leased->Direct(static_cast<CUstream>(stream)));
  return convolution->EnqueueFilterTransform(leased->handle(), filter, transformed);
}

Status CudnnBackend::FillZero(void* data, size_t bytes, Stream stream) {
  if (bytes == 0) return Status::Ok();
  ScopedContext scope(driver_, ExecutionOf(stream));
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  return driver_.Check(driver_.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(data), 0, bytes,
                                               static_cast<CUstream>(stream)),
                       "cuMemsetD8Async");
}

Status CudnnBackend::CopyRows(const void* source, size_t source_pitch, void* destination,
                              size_t destination_pitch, size_t row_bytes, size_t rows,
                              Stream stream) {
  if (row_bytes == 0 || rows == 0) return Status::Ok();
  ScopedContext scope(driver_, ExecutionOf(stream));
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = reinterpret_cast<CUdeviceptr>(source);
  copy.srcPitch = source_pitch;
  copy.dstDevice = reinterpret_cast<CUdeviceptr>(destination);
  copy.dstPitch = destination_pitch;
  copy.WidthInBytes = row_bytes;
  copy.Height = rows;
  return driver_.Check(driver_.cuMemcpy2DAsync(&copy, static_cast<CUstream>(stream)),
                       "cuMemcpy2DAsync");
}

}  // namespace tf_interop

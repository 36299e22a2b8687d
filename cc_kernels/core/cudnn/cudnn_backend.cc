#include "cc_kernels/core/cudnn/cudnn_backend.h"

#include <cuda.h>

#include <functional>
#include <utility>

#include "cc_kernels/core/cudnn/algorithm_list.h"
#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"

namespace tf_interop {
namespace {

class CudaEvent : public Event {
 public:
  explicit CudaEvent(const CudaDriver& driver) : driver_(driver) {}
  ~CudaEvent() override {
    // A failure to free is nothing that a caller could act on.
    if (event_ != nullptr) (void)driver_.cuEventDestroy(event_);
  }

  Status Create() {
    // Without timing, recording and waiting cost less.
    return driver_.Check(driver_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }

  CUevent get() const { return event_; }

 private:
  const CudaDriver& driver_;
  CUevent event_ = nullptr;
};

// A stream of its own, a cuDNN handle, and the two events of the stream contract. Made and
// destroyed with the backend's context current.
class CudnnStreamGroup : public StreamGroup {
 public:
  CudnnStreamGroup(const CudaDriver& driver, const CudnnLibrary& library)
      : driver_(driver), library_(library), fork_event_(driver), join_event_(driver) {}

  ~CudnnStreamGroup() override {
    // A failure to free is nothing that a caller could act on.
    if (handle_ != nullptr) (void)library_.cudnnDestroy(handle_);
    if (stream_ != nullptr) (void)driver_.cuStreamDestroy(stream_);
  }

  Status Create() {
    // Non-blocking: work on the legacy default stream must not hold the lanes up.
    TF_INTEROP_RETURN_IF_ERROR(
        driver_.Check(driver_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
                      "cuStreamCreateWithPriority"));
    TF_INTEROP_RETURN_IF_ERROR(fork_event_.Create());
    TF_INTEROP_RETURN_IF_ERROR(join_event_.Create());
    return CreateHandle();
  }

  Stream stream() const override { return stream_; }
  Event* fork_event() override { return &fork_event_; }
  Event* join_event() override { return &join_event_; }

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
  Status CreateHandle() {
    // One at a time: cuDNN asks that its first handle be complete before others are created.
    static std::mutex* mutex = new std::mutex();
    std::lock_guard<std::mutex> lock(*mutex);
    const Status status = library_.Check(library_.cudnnCreate(&handle_), "cudnnCreate");
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

Status CudnnBackend::ForStream(CUstream_st* caller, CudnnBackend** backend) {
  const CudaDriver* driver = nullptr;
  const CudnnLibrary* library = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(CudaDriver::Get(&driver));
  TF_INTEROP_RETURN_IF_ERROR(CudnnLibrary::Get(&library));
  CUcontext context = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(
      driver->Check(driver->cuStreamGetCtx(caller, &context), "cuStreamGetCtx"));

  static std::mutex* mutex = new std::mutex();
  static auto* backends = new std::unordered_map<CUcontext, CudnnBackend*>();
  std::lock_guard<std::mutex> lock(*mutex);
  CudnnBackend*& entry = (*backends)[context];
  if (entry == nullptr) entry = new CudnnBackend(*driver, *library, context);
  *backend = entry;
  return Status::Ok();
}

bool CudnnBackend::PrepareKey::operator==(const PrepareKey& other) const {
  return convolution == other.convolution && algorithm == other.algorithm &&
         workspace_limit_bytes == other.workspace_limit_bytes && allow_tf32 == other.allow_tf32;
}

size_t CudnnBackend::PrepareKeyHash::operator()(const PrepareKey& key) const {
  const size_t convolution = ConvolutionHash()(key.convolution);
  return convolution ^ (std::hash<std::string>()(key.algorithm) * 31) ^
         (key.workspace_limit_bytes * 2 + (key.allow_tf32 ? 1 : 0));
}

Status CudnnBackend::Prepare(const Convolution& convolution, const std::string& algorithm,
                             size_t workspace_limit_bytes,
                             std::shared_ptr<const PreparedConvolution>* prepared) {
  const PrepareKey key = {convolution, algorithm, workspace_limit_bytes, allow_tf32_};
  {
    std::lock_guard<std::mutex> lock(prepared_mutex_);
    const auto found = prepared_.find(key);
    if (found != prepared_.end()) {
      *prepared = found->second.prepared;
      return found->second.status;
    }
  }
  // Unlocked: compiling a plan may take seconds, and other convolutions need not wait for it.
  PrepareOutcome outcome = PrepareAnew(key);
  if (!IsLasting(outcome.status)) return outcome.status;
  std::lock_guard<std::mutex> lock(prepared_mutex_);
  const PrepareOutcome& kept = prepared_.try_emplace(key, std::move(outcome)).first->second;
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
  const Status status = WithHandle([&](cudnnHandle_t handle) {
    return PrepareCudnnConvolution(driver_, library_, handle, key.convolution, key.algorithm,
                                   key.workspace_limit_bytes, options, &prepared);
  });
  return {status, std::move(prepared)};
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
  TF_INTEROP_RETURN_IF_ERROR(WithHandle([&](cudnnHandle_t handle) {
    return RestoreCudnnConvolution(driver_, library_, handle, convolution, serialized, options,
                                   &restored);
  }));
  *prepared = std::move(restored);
  return Status::Ok();
}

Status CudnnBackend::Acquire(const StreamGroupOptions& options,
                             std::unique_ptr<StreamGroup>* group) {
  if (!(options == StreamGroupOptions())) return Unsupported("Not there yet.");
  {
    std::lock_guard<std::mutex> lock(groups_mutex_);
    if (!idle_groups_.empty()) {
      *group = std::move(idle_groups_.back());
      idle_groups_.pop_back();
      return Status::Ok();
    }
  }
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  auto made = std::make_unique<CudnnStreamGroup>(driver_, library_);
  TF_INTEROP_RETURN_IF_ERROR(made->Create());
  *group = std::move(made);
  return Status::Ok();
}

void CudnnBackend::Release(std::unique_ptr<StreamGroup> group) {
  if (!group) return;
  std::lock_guard<std::mutex> lock(groups_mutex_);
  idle_groups_.push_back(std::move(group));
}

Status CudnnBackend::Record(Event* event, Stream stream) {
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  return driver_.Check(
      driver_.cuEventRecord(static_cast<CudaEvent*>(event)->get(), static_cast<CUstream>(stream)),
      "cuEventRecord");
}

Status CudnnBackend::Wait(Stream stream, Event* event) {
  ScopedContext scope(driver_, context_);
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
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  const auto cuda_stream = static_cast<CUstream>(stream);
  TF_INTEROP_RETURN_IF_ERROR(leased->Direct(cuda_stream));
  return convolution->Enqueue({leased->handle(), cuda_stream, buffers, workspace});
}

Status CudnnBackend::TransformFilter(const PreparedConvolution& prepared, const void* filter,
                                     void* transformed, StreamGroup* group, Stream stream) {
  const auto* convolution = dynamic_cast<const CudnnConvolution*>(&prepared);
  auto* leased = dynamic_cast<CudnnStreamGroup*>(group);
  TF_INTEROP_RETURN_IF_ERROR(CheckOwn(convolution, leased));
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  TF_INTEROP_RETURN_IF_ERROR(leased->Direct(static_cast<CUstream>(stream)));
  return convolution->EnqueueFilterTransform(leased->handle(), filter, transformed);
}

Status CudnnBackend::FillZero(void* data, size_t bytes, Stream stream) {
  if (bytes == 0) return Status::Ok();
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  return driver_.Check(driver_.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(data), 0, bytes,
                                               static_cast<CUstream>(stream)),
                       "cuMemsetD8Async");
}

}  // namespace tf_interop

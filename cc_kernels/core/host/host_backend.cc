#include "cc_kernels/core/host/host_backend.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "cc_kernels/core/host/host_convolution.h"

namespace tf_interop {
namespace {

// Two of the widest stages (kMaxLanes) at once.
constexpr int kMaxThreads = 64;

class HostStreamGroup : public StreamGroup {
 public:
  // `stream` is null for a group on the caller's.
  explicit HostStreamGroup(std::unique_ptr<HostStream> stream) : stream_(std::move(stream)) {}
  Stream stream() const override { return stream_.get(); }
  bool has_thread() const { return stream_ != nullptr && stream_->has_thread(); }
  Event* fork_event() override { return &fork_event_; }
  Event* join_event() override { return &join_event_; }

 private:
  std::unique_ptr<HostStream> stream_;
  HostEvent fork_event_;
  HostEvent join_event_;
};

class HostPrepared : public PreparedConvolution {
 public:
  HostPrepared(const HostConvolution& convolution, std::string algorithm)
      : convolution_(convolution), algorithm_(std::move(algorithm)) {}
  size_t workspace_bytes() const override { return convolution_.workspace_bytes(); }
  const std::string& algorithm() const override { return algorithm_; }
  size_t transformed_filter_bytes() const override {
    return convolution_.transformed_filter_bytes();
  }
  const HostConvolution& convolution() const { return convolution_; }

 private:
  const HostConvolution convolution_;
  const std::string algorithm_;
};

HostStream* AsHostStream(Stream stream) { return static_cast<HostStream*>(stream); }

// Groups of one input channel (depthwise) make matrices that are too thin for a product.
HostAlgorithm ChooseAlgorithm(const Convolution& c) {
  const bool is_depthwise = c.group_count > 1 && c.image_channels == c.group_count;
  return is_depthwise ? HostAlgorithm::kDirect : HostAlgorithm::kIm2colGemm;
}

}  // namespace

HostBackend::HostBackend(ParallelFor parallel_for, HostLaunchHook hook)
    : parallel_for_(std::move(parallel_for)), hook_(std::move(hook)), owner_(getpid()) {}

Status HostBackend::Prepare(const Convolution& convolution, const std::string& algorithm,
                            const PrepareOptions& options,
                            std::shared_ptr<const PreparedConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(convolution));
  HostAlgorithm chosen = ChooseAlgorithm(convolution);
  if (!algorithm.empty()) {
    TF_INTEROP_RETURN_IF_ERROR(ParseHostAlgorithm(algorithm, &chosen));
    if (!CanRun(chosen, convolution)) {
      return Unsupported("Expected a forward convolution of flat images without groups for " +
                         algorithm + ", got " + ToString(convolution) + ".");
    }
  }
  HostConvolution ready(convolution, chosen);
  if (ready.workspace_bytes() > options.workspace_limit_bytes) {
    if (!algorithm.empty()) {
      return Unsupported("Algorithm " + algorithm + " needs a workspace of " +
                         std::to_string(ready.workspace_bytes()) + " bytes, the limit is " +
                         std::to_string(options.workspace_limit_bytes) + ".");
    }
    chosen = HostAlgorithm::kDirect;
    ready = HostConvolution(convolution, chosen);
  }
  *prepared = std::make_shared<HostPrepared>(ready, HostAlgorithmName(chosen));
  return Status::Ok();
}

void HostBackend::DropStreamsOfParent() {
  if (owner_ == getpid()) return;
  // Their threads exist in the parent only: joining them here would wait for ever.
  for (auto& group : idle_) (void)group.release();
  idle_.clear();
  thread_count_ = 0;
  owner_ = getpid();
}

Status HostBackend::ListAlgorithms(const Convolution& convolution, AlgorithmScope, bool,
                                   std::vector<std::string>* algorithms) {
  algorithms->clear();
  for (const HostAlgorithm algorithm :
       {HostAlgorithm::kIm2colGemm, HostAlgorithm::kEigenSpatial, HostAlgorithm::kDirect}) {
    if (CanRun(algorithm, convolution)) algorithms->emplace_back(HostAlgorithmName(algorithm));
  }
  return Status::Ok();
}

Status HostBackend::Acquire(const StreamGroupOptions& options,
                            std::unique_ptr<StreamGroup>* group) {
  if (options.uses_caller_stream) {
    *group = std::make_unique<HostStreamGroup>(nullptr);
    return Status::Ok();
  }
  if (!options.partition.empty()) {
    return Unsupported(
        "Expected lanes without SM counts on the host backend, which has no SMs to divide. Use a "
        "plan without them on the CPU.");
  }
  bool may_start_thread = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    DropStreamsOfParent();
    if (!idle_.empty()) {
      *group = std::move(idle_.back());
      idle_.pop_back();
      return Status::Ok();
    }
    may_start_thread = thread_count_ < kMaxThreads;
    if (may_start_thread) ++thread_count_;
  }
  std::unique_ptr<HostStream> stream;
  if (may_start_thread && !HostStream::Create(&stream).ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    --thread_count_;
  }
  if (stream == nullptr) stream = HostStream::CreateWithoutThread();
  *group = std::make_unique<HostStreamGroup>(std::move(stream));
  return Status::Ok();
}

void HostBackend::Release(std::unique_ptr<StreamGroup> group) {
  if (!static_cast<const HostStreamGroup*>(group.get())->has_thread()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  DropStreamsOfParent();
  idle_.push_back(std::move(group));
}

Status HostBackend::Record(Event* event, Stream stream) {
  HostStream* const host_stream = AsHostStream(stream);
  std::shared_ptr<Latch> latch = static_cast<HostEvent*>(event)->Record();
  host_stream->Enqueue([latch, host_stream] {
    latch->Open(host_stream->TakeError());
    return Status::Ok();
  });
  return Status::Ok();
}

Status HostBackend::Wait(Stream stream, Event* event) {
  std::shared_ptr<Latch> latch = static_cast<HostEvent*>(event)->latch();
  if (latch == nullptr) return InvalidArgument("Expected a recorded event, got a new one.");
  AsHostStream(stream)->Enqueue([latch] { return latch->Wait(); });
  return Status::Ok();
}

Status HostBackend::Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                           void* workspace, StreamGroup* group, Stream stream) {
  (void)group;
  const HostConvolution& convolution = static_cast<const HostPrepared&>(prepared).convolution();
  // A copy of the description (no tensor data): `prepared` may go before the work has run.
  AsHostStream(stream)->Enqueue([this, convolution, buffers, workspace]() -> Status {
    if (hook_) TF_INTEROP_RETURN_IF_ERROR(hook_(convolution.convolution()));
    convolution.Run(buffers, workspace, parallel_for_);
    return Status::Ok();
  });
  return Status::Ok();
}

Status HostBackend::TransformFilter(const PreparedConvolution& prepared, const void* filter,
                                    void* transformed, StreamGroup* group, Stream stream) {
  (void)group;
  const HostConvolution& convolution = static_cast<const HostPrepared&>(prepared).convolution();
  AsHostStream(stream)->Enqueue([convolution, filter, transformed] {
    convolution.TransformFilter(filter, transformed);
    return Status::Ok();
  });
  return Status::Ok();
}

Status HostBackend::FillZero(void* data, size_t bytes, Stream stream) {
  AsHostStream(stream)->Enqueue([data, bytes] {
    std::memset(data, 0, bytes);
    return Status::Ok();
  });
  return Status::Ok();
}

Status HostBackend::CopyRows(const void* source, size_t source_pitch, void* destination,
                             size_t destination_pitch, size_t row_bytes, size_t rows,
                             Stream stream) {
  AsHostStream(stream)->Enqueue([=] {
    const auto* from = static_cast<const unsigned char*>(source);
    auto* to = static_cast<unsigned char*>(destination);
    for (size_t row = 0; row < rows; ++row) {
      std::memcpy(to + row * destination_pitch, from + row * source_pitch, row_bytes);
    }
    return Status::Ok();
  });
  return Status::Ok();
}

}  // namespace tf_interop

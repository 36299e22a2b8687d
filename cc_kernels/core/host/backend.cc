#include "cc_kernels/core/host/backend.h"

#include <cstdlib>
#include <cstring>
#include <future>
#include <utility>

#include "cc_kernels/core/host/reference_convolution.h"

namespace tf_interop {
namespace {

struct HostStreamGroup : StreamGroup {
  HostStreamGroup() {
    stream = &queue;
    fork_event = &fork;
    join_event = &join;
  }

  HostStream queue;
  HostEvent fork, join;
};

constexpr char kBuffered[] = "BUFFERED", kDirect[] = "DIRECT";

constexpr char kRefusedForNow[] = "TF_INTEROP_HOST_REFUSES";

class HostPrepared : public PreparedConvolution {
 public:
  HostPrepared(const Convolution& convolution, std::string algorithm)
      : convolution_(convolution), algorithm_(std::move(algorithm)) {}

  const Convolution& convolution() const { return convolution_; }
  const std::string& algorithm() const override { return algorithm_; }
  size_t workspace_bytes() const override {
    return algorithm_ == kBuffered ? convolution_.result_elements() * sizeof(double) : 0;
  }
  size_t transformed_filter_bytes() const override {
    const bool reads_filter = convolution_.kind != ConvolutionKind::kBackwardFilter;
    if (!reads_filter || SizeOf(convolution_.dtype) != 2) return 0;
    return convolution_.filter_elements() * sizeof(double);
  }

  void Run(const ConvolutionBuffers& buffers, void* workspace) const {
    const Convolution& c = convolution_;
    const std::vector<int64_t> elements = InputElements(c);
    const size_t filter = c.kind == ConvolutionKind::kForward ? 1 : 0;
    std::vector<std::vector<double>> decoded(elements.size());
    std::vector<const double*> inputs;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i == filter && buffers.transformed_filter != nullptr) {
        inputs.push_back(static_cast<const double*>(buffers.transformed_filter));
        continue;
      }
      decoded[i] = Decode(c.dtype, buffers.inputs[i], elements[i]);
      inputs.push_back(decoded[i].data());
    }
    std::vector<double> sums;
    if (algorithm_ == kDirect) sums.resize(c.result_elements());
    double* const result = algorithm_ == kDirect ? sums.data() : static_cast<double*>(workspace);
    Convolve(c, inputs, result);
    Encode(c.dtype, result, c.result_elements(), buffers.result);
  }

 private:
  const Convolution convolution_;
  const std::string algorithm_;
};

HostStream* AsHostStream(Stream stream) { return static_cast<HostStream*>(stream); }

}  // namespace

Status HostBackend::Prepare(const Convolution& convolution, const std::string& algorithm,
                            const PrepareOptions& options,
                            std::shared_ptr<const PreparedConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(convolution));
  if (!algorithm.empty() && algorithm != kBuffered && algorithm != kDirect) {
    return InvalidArgument("Expected BUFFERED or DIRECT on the host backend, got " + algorithm +
                           ".");
  }
  auto ready =
      std::make_shared<HostPrepared>(convolution, algorithm.empty() ? kBuffered : algorithm);
  if (ready->workspace_bytes() > options.workspace_limit_bytes) {
    if (!algorithm.empty()) {
      return Unsupported("Algorithm " + algorithm + " needs a workspace of " +
                         std::to_string(ready->workspace_bytes()) + " bytes; the limit is " +
                         std::to_string(options.workspace_limit_bytes) + ".");
    }
    ready = std::make_shared<HostPrepared>(convolution, kDirect);
  }
  const char* const refused = std::getenv(kRefusedForNow);
  if (refused != nullptr && std::strstr(refused, ready->algorithm().c_str()) != nullptr) {
    return ResourceExhausted("Algorithm " + ready->algorithm() + " is refused while " +
                             kRefusedForNow + " names it.");
  }
  *prepared = std::move(ready);
  return Status::Ok();
}

Status HostBackend::ListAlgorithms(const Convolution&, AlgorithmScope, bool,
                                   std::vector<std::string>* algorithms) {
  *algorithms = {kBuffered, kDirect};
  return Status::Ok();
}

Status HostBackend::Acquire(int, std::unique_ptr<StreamGroup>* group) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) {
    *group = std::make_unique<HostStreamGroup>();
  } else {
    *group = std::move(idle_.back());
    idle_.pop_back();
  }
  return Status::Ok();
}

void HostBackend::Release(std::unique_ptr<StreamGroup> group) {
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(group));
}

Status HostBackend::Mark(Stream stream, const std::shared_ptr<const TimeMark>&,
                         std::shared_ptr<const TimeMark>* mark) {
  const auto made = std::make_shared<HostTimeMark>();
  *mark = made;
  return EnqueueOn(stream, [made] { made->Pass(); });
}

Status HostBackend::Record(Event event, Stream stream) {
  const auto reached = std::make_shared<std::promise<Status>>();
  static_cast<HostEvent*>(event)->reached = reached->get_future();
  return EnqueueOn(stream,
                   [reached, stream] { reached->set_value(AsHostStream(stream)->TakeError()); });
}

Status HostBackend::Wait(Stream stream, Event event) {
  const std::shared_future<Status> reached = static_cast<HostEvent*>(event)->reached;
  return EnqueueOn(stream, [reached] { return reached.get(); });
}

Status HostBackend::Synchronize(Stream stream) {
  AsHostStream(stream)->Synchronize();
  return AsHostStream(stream)->TakeError();
}

Status HostBackend::Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                           void* workspace, Stream stream) {
  // Copied, because `prepared` may be gone when the work runs.
  const auto& convolution = static_cast<const HostPrepared&>(prepared);
  return EnqueueOn(stream,
                   [convolution, buffers, workspace] { convolution.Run(buffers, workspace); });
}

Status HostBackend::TransformFilter(const PreparedConvolution& prepared, const void* filter,
                                    void* transformed, Stream stream) {
  const Convolution c = static_cast<const HostPrepared&>(prepared).convolution();
  return EnqueueOn(stream, [c, filter, transformed] {
    Decode(c.dtype, filter, c.filter_elements(), static_cast<double*>(transformed));
  });
}

Status HostBackend::FillZero(void* data, size_t bytes, Stream stream) {
  return EnqueueOn(stream, [data, bytes] { std::memset(data, 0, bytes); });
}

Status HostBackend::CopyRows(const void* source, size_t source_pitch, void* destination,
                             size_t destination_pitch, size_t row_bytes, size_t rows,
                             Stream stream) {
  return EnqueueOn(stream, [=] {
    const auto* from = static_cast<const unsigned char*>(source);
    auto* to = static_cast<unsigned char*>(destination);
    for (size_t row = 0; row < rows; ++row) {
      std::memcpy(to + row * destination_pitch, from + row * source_pitch, row_bytes);
    }
  });
}

}  // namespace tf_interop

#include "cc_kernels/tf/tried_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "cc_kernels/tf/onednn.h"
#include "cc_kernels/tf/winograd_convolution.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/determinism.h"

namespace tf_interop {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

constexpr int kTrials = 6;  // of both ways together, in turns
// The other way must take less than this part of the kernel's time. What is left makes up for times
// that another program disturbs.
constexpr double kMostTime = 0.95;
constexpr int64_t kMostSizes = 4;  // in a tensor of sizes
// Results of 0 show nothing, as in the first steps of a network some of whose scales begin as 0. So
// later ones decide, if there are any soon.
constexpr int kMostZeroResults = 16;

bool IsZero(const Tensor& result) {
  const auto* const values = static_cast<const float*>(result.data());
  return std::all_of(values, values + result.NumElements(), [](float value) { return value == 0; });
}

// Whether the results are finite and the first one is nearly the kernel's. Others are sums, and
// those of a gradient are often 0 but for rounding.
bool AreRight(absl::Span<const Tensor> results, OpKernelContext* context) {
  for (const Tensor& each : results.subspan(1)) {
    const auto* const values = static_cast<const float*>(each.data());
    const bool is_finite = std::all_of(values, values + each.NumElements(),
                                       [](float value) { return std::isfinite(value); });
    if (!is_finite) return false;
  }
  return AreNear(results[0], *context->mutable_output(0));
}

}  // namespace

struct TriedStep::Ways {
  enum class State { kNew, kTrying, kKernel, kOther };

  std::unique_ptr<OtherWay> other;  // null if only the kernel takes the inputs
  std::mutex mutex;                 // guards the rest
  State state = State::kNew;
  std::vector<tensorflow::TensorShape> shapes;  // of the results; written before kTrying
  int zero_results = 0;
  int trials = 0;
  double kernel_seconds = std::numeric_limits<double>::infinity();  // the least so far
  double other_seconds = std::numeric_limits<double>::infinity();
};

absl::string_view TriedStep::Turn::name() const {
  return is_other ? ways->other->name() : absl::string_view();
}

std::unique_ptr<TriedStep> TriedStep::Make(const OpKernel& kernel) {
  if (FindOneDnn() == nullptr || kernel.num_outputs() == 0 ||
      kernel.output_type(0) != tensorflow::DT_FLOAT) {
    return nullptr;
  }
  for (const auto find : {FindConvolutionWays, FindDepthwiseFilterGradient, FindSliceGradient,
                          FindTrainingNormalization}) {
    if (OtherWayMaker make = find(kernel); make != nullptr) {
      return std::unique_ptr<TriedStep>(new TriedStep(std::move(make)));
    }
  }
  return nullptr;
}

TriedStep::Key TriedStep::KeyOf(const OpKernelContext& context, int cores) {
  Key key = {cores};
  for (int i = 0; i < context.num_inputs(); ++i) {
    const Tensor& input = context.input(i);
    key.push_back(input.dims());
    for (int axis = 0; axis < input.dims(); ++axis) key.push_back(input.dim_size(axis));
    // A gradient's sizes may change while those of its other inputs do not.
    if (input.dtype() != tensorflow::DT_INT32 || input.NumElements() > kMostSizes) continue;
    const auto* const sizes = static_cast<const int32_t*>(input.data());
    key.insert(key.end(), sizes, sizes + input.NumElements());
  }
  return key;
}

TriedStep::Turn TriedStep::Find(const OpKernelContext& context) {
  // The choice depends on times, and so do the bits of the result.
  if (tensorflow::OpDeterminismRequired()) return {};
  const int cores = context.device()->tensorflow_cpu_worker_threads()->num_threads;
  Key key = KeyOf(context, cores);
  std::optional<std::shared_ptr<Ways>> found = ways_.Find(key);
  if (!found.has_value()) {
    auto made = std::make_shared<Ways>();
    made->other = make_(context, cores);
    found = ways_.Insert(std::move(key), std::move(made));
  }
  Ways& ways = **found;
  if (ways.other == nullptr) return {};
  const std::lock_guard<std::mutex> lock(ways.mutex);
  switch (ways.state) {
    case Ways::State::kNew:
      return {*found, /*is_other=*/false, /*is_first=*/true};
    case Ways::State::kTrying: {
      const int trial = ways.trials++;
      return {*found, /*is_other=*/trial % 2 == 1, /*is_first=*/false, trial};
    }
    case Ways::State::kKernel:
      return {};
    case Ways::State::kOther:
      return {*found, /*is_other=*/true};
  }
  return {};
}

void TriedStep::Run(OpKernelContext* context, OpKernel* kernel, const Turn& turn) {
  Ways& ways = *turn.ways;
  const auto begin = std::chrono::steady_clock::now();
  if (turn.is_other) {
    absl::InlinedVector<Tensor*, 6> results(ways.shapes.size());
    absl::Status status;
    for (size_t i = 0; i < results.size() && status.ok(); ++i) {
      status = context->allocate_output(static_cast<int>(i), ways.shapes[i], &results[i]);
    }
    if (status.ok()) status = ways.other->Run(context, results);
    context->SetStatus(status);
  } else {
    kernel->Compute(context);
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  if (!context->status().ok()) return;
  if (turn.is_first) {
    std::vector<tensorflow::TensorShape> shapes;
    std::vector<Tensor> others(kernel->num_outputs());
    absl::InlinedVector<Tensor*, 6> results;
    absl::Status status;
    for (int i = 0; i < kernel->num_outputs() && status.ok(); ++i) {
      shapes.push_back(context->mutable_output(i)->shape());
      status = context->allocate_temp(kernel->output_type(i), shapes.back(), &others[i]);
      results.push_back(&others[i]);
    }
    const bool is_near =
        status.ok() && ways.other->Run(context, results).ok() && AreRight(others, context);
    const bool is_zero = !is_near && IsZero(*context->mutable_output(0));
    const std::lock_guard<std::mutex> lock(ways.mutex);
    if (is_zero && ++ways.zero_results < kMostZeroResults) return;
    if (ways.state == Ways::State::kNew) {
      ways.shapes = std::move(shapes);
      ways.state = is_near ? Ways::State::kTrying : Ways::State::kKernel;
    }
  }
  if (turn.trial < 0) return;
  const std::lock_guard<std::mutex> lock(ways.mutex);
  double& least = turn.is_other ? ways.other_seconds : ways.kernel_seconds;
  least = std::min(least, time.count());
  if (ways.state != Ways::State::kTrying || turn.trial + 1 < kTrials) return;
  const bool is_faster = ways.other_seconds < kMostTime * ways.kernel_seconds;
  ways.state = is_faster ? Ways::State::kOther : Ways::State::kKernel;
}

}  // namespace tf_interop

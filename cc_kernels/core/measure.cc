#include "cc_kernels/core/measure.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <new>
#include <numeric>
#include <random>
#include <utility>

#include "Eigen/Core"
#include "cc_kernels/core/float64_reference.h"

namespace tf_interop {
namespace {

using Bytes = std::vector<unsigned char>;

// Reads as NaN in every type.
constexpr unsigned char kUnwritten = 0xFF;

// Elements of the tensors that are read, in the order of ConvolutionBuffers.
std::vector<int64_t> InputElements(const Convolution& c) {
  switch (c.kind) {
    case ConvolutionKind::kForward:
      if (c.has_bias) return {c.image_elements(), c.filter_elements(), c.output_channels};
      return {c.image_elements(), c.filter_elements()};
    case ConvolutionKind::kBackwardInput:
      return {c.filter_elements(), c.output_elements()};
    case ConvolutionKind::kBackwardFilter:
      return {c.image_elements(), c.output_elements()};
  }
  return {};
}

template <typename T>
void FillNormal(std::mt19937_64* random, Bytes* tensor) {
  std::normal_distribution<float> normal;
  T* const elements = reinterpret_cast<T*>(tensor->data());
  for (size_t i = 0; i < tensor->size() / sizeof(T); ++i) {
    elements[i] = static_cast<T>(normal(*random));
  }
}

template <typename T>
std::vector<double> Decode(const Bytes& tensor) {
  const T* const elements = reinterpret_cast<const T*>(tensor.data());
  std::vector<double> values(tensor.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(elements[i]);
  return values;
}

std::vector<double> Decode(DataType dtype, const Bytes& tensor) {
  return dtype == DataType::kHalf ? Decode<Eigen::half>(tensor) : Decode<float>(tensor);
}

// A convolution with operands in host memory.
struct Problem {
  Convolution convolution;
  std::vector<Bytes> inputs;
  size_t result_bytes = 0;

  size_t bytes() const {
    size_t sum = result_bytes;
    for (const Bytes& input : inputs) sum += input.size();
    return sum;
  }
};

Problem MakeProblem(const Convolution& c, std::mt19937_64* random) {
  Problem problem;
  problem.convolution = c;
  problem.result_bytes = c.result_elements() * SizeOf(c.dtype);
  for (const int64_t elements : InputElements(c)) {
    Bytes input(elements * SizeOf(c.dtype));
    c.dtype == DataType::kHalf ? FillNormal<Eigen::half>(random, &input)
                               : FillNormal<float>(random, &input);
    problem.inputs.push_back(std::move(input));
  }
  return problem;
}

// Device memory that is freed with the object, once nothing uses it any more.
class DeviceMemory {
 public:
  explicit DeviceMemory(MeasuringDevice* device) : device_(device) {}
  ~DeviceMemory() {
    // After a failure work may still be pending, and its error has been reported already.
    (void)device_->Synchronize();
    for (void* data : allocated_) device_->Free(data);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Null for no bytes.
  Status Allocate(size_t bytes, void** data) {
    *data = nullptr;
    if (bytes == 0) return Status::Ok();
    allocated_.reserve(allocated_.size() + 1);
    TF_INTEROP_RETURN_IF_ERROR(device_->Allocate(bytes, data));
    allocated_.push_back(*data);
    return Status::Ok();
  }

  Status AllocateCopy(const Bytes& bytes, void** data) {
    TF_INTEROP_RETURN_IF_ERROR(Allocate(bytes.size(), data));
    return device_->CopyToDevice(bytes.data(), bytes.size(), *data);
  }

 private:
  MeasuringDevice* const device_;
  std::vector<void*> allocated_;
};

// A prepared stage with the workspaces of its lanes.
struct Runnable {
  PreparedStage stage;
  std::vector<void*> workspaces;
};

// The device, and the copies of all tensors that runs go through.
class Bench {
 public:
  explicit Bench(MeasuringDevice* device) : device_(device), memory_(device) {}

  // `runs` is how often anything will be run.
  Status SetUp(const std::vector<Problem>& problems, const MeasureOptions& options, int64_t runs) {
    const MeasuringDefaults defaults = device_->defaults();
    head_start_bytes_ = options.head_start_bytes.value_or(defaults.head_start_bytes);
    TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(head_start_bytes_, &head_start_));
    size_t bytes = 0;
    for (const Problem& problem : problems) bytes += problem.bytes();
    const size_t wanted = options.cache_bytes.value_or(defaults.cache_bytes) / bytes + 1;
    copies_.resize(std::min(wanted, static_cast<size_t>(runs)));
    for (std::vector<ConvolutionBuffers>& copy : copies_) {
      for (const Problem& problem : problems) {
        ConvolutionBuffers buffers;
        for (size_t i = 0; i < problem.inputs.size(); ++i) {
          void* input = nullptr;
          TF_INTEROP_RETURN_IF_ERROR(memory_.AllocateCopy(problem.inputs[i], &input));
          buffers.inputs[i] = input;
        }
        TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(problem.result_bytes, &buffers.result));
        copy.push_back(buffers);
      }
    }
    return Status::Ok();
  }

  Status AllocateWorkspaces(Runnable* runnable) {
    for (const size_t bytes : runnable->stage.lane_workspace_bytes) {
      void* workspace = nullptr;
      TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(bytes, &workspace));
      runnable->workspaces.push_back(workspace);
    }
    return Status::Ok();
  }

  // Runs on the first copy, and gives the result of the only step.
  Status RunForResult(const Runnable& runnable, Bytes* result) {
    std::fill(result->begin(), result->end(), kUnwritten);
    void* const data = copies_[0][0].result;
    TF_INTEROP_RETURN_IF_ERROR(device_->CopyToDevice(result->data(), result->size(), data));
    TF_INTEROP_RETURN_IF_ERROR(RunOn(runnable, copies_[0]));
    TF_INTEROP_RETURN_IF_ERROR(device_->Synchronize());
    return device_->CopyFromDevice(data, result->size(), result->data());
  }

  // Runs on the next copy.
  Status TimeRun(const Runnable& runnable, double* elapsed_us) {
    if (head_start_bytes_ > 0) {
      TF_INTEROP_RETURN_IF_ERROR(
          device_->backend()->FillZero(head_start_, head_start_bytes_, device_->stream()));
    }
    TF_INTEROP_RETURN_IF_ERROR(device_->StartTimer());
    TF_INTEROP_RETURN_IF_ERROR(RunOn(runnable, copies_[next_copy_]));
    next_copy_ = (next_copy_ + 1) % copies_.size();
    TF_INTEROP_RETURN_IF_ERROR(device_->StopTimer());
    return device_->ReadTimer(elapsed_us);
  }

  int64_t copies() const { return static_cast<int64_t>(copies_.size()); }

 private:
  Status RunOn(const Runnable& runnable, const std::vector<ConvolutionBuffers>& copy) {
    return RunStage(device_->backend(), runnable.stage, copy, runnable.workspaces,
                    device_->stream());
  }

  MeasuringDevice* const device_;
  std::vector<std::vector<ConvolutionBuffers>> copies_;  // one entry for each step
  size_t next_copy_ = 0;
  void* head_start_ = nullptr;
  size_t head_start_bytes_ = 0;
  DeviceMemory memory_;
};

// The value below which `fraction` of the sorted values lie, linear between neighbours.
double Percentile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

TimeFigure Summarize(std::vector<double> times_us) {
  std::sort(times_us.begin(), times_us.end());
  return {Percentile(times_us, 0.5), (Percentile(times_us, 0.9) - Percentile(times_us, 0.1)) / 2};
}

// Measures the ways to run by turns; times[i] are those of ways[i].
Status TimeByTurns(Bench* bench, const std::vector<const Runnable*>& ways,
                   const MeasureOptions& options, std::vector<TimeFigure>* figures) {
  std::vector<std::vector<double>> times(ways.size());
  for (int64_t turn = 0; turn < options.warmup_runs + options.repetitions; ++turn) {
    for (size_t i = 0; i < ways.size(); ++i) {
      const size_t way = (i + turn) % ways.size();
      double elapsed_us = 0;
      TF_INTEROP_RETURN_IF_ERROR(bench->TimeRun(*ways[way], &elapsed_us));
      if (turn >= options.warmup_runs) times[way].push_back(elapsed_us);
    }
  }
  figures->clear();
  for (std::vector<double>& each : times) figures->push_back(Summarize(std::move(each)));
  return Status::Ok();
}

double RelativeError(const std::vector<double>& expected, const std::vector<double>& got) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::fabs(got[i] - expected[i]));
    largest = std::max(largest, std::fabs(expected[i]));
  }
  if (difference == 0) return 0;
  return difference / largest;
}

double MeasureError(const Problem& problem, const Bytes& result) {
  const DataType dtype = problem.convolution.dtype;
  std::vector<std::vector<double>> inputs;
  for (const Bytes& input : problem.inputs) inputs.push_back(Decode(dtype, input));
  return RelativeError(ComputeInFloat64(problem.convolution, inputs), Decode(dtype, result));
}

Status CheckOptions(const MeasureOptions& options) {
  if (options.warmup_runs < 0 || options.repetitions < 1) {
    return InvalidArgument("Expected at least 0 warm-up runs and 1 repetition, got " +
                           std::to_string(options.warmup_runs) + " and " +
                           std::to_string(options.repetitions) + ".");
  }
  return Status::Ok();
}

Status CheckHasWork(const Convolution& c) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(c));
  if (c.result_elements() > 0 && !c.reads_nothing()) return Status::Ok();
  return InvalidArgument("Expected a convolution with something to compute, got " + ToString(c) +
                         ".");
}

// Host memory may run out in any container.
template <typename Measure>
Status Guarded(const Measure& measure) {
  try {
    return measure();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("Out of host memory for the operands of a measurement.");
  } catch (const std::exception& error) {
    return Internal(std::string("A measurement failed: ") + error.what());
  }
}

Status MeasurePrepared(MeasuringDevice* device, const Convolution& convolution,
                       const MeasureOptions& options,
                       const std::shared_ptr<const PreparedConvolution>& prepared,
                       Measurement* measurement) {
  std::mt19937_64 random(options.seed);
  const Problem problem = MakeProblem(convolution, &random);
  Runnable runnable;
  runnable.stage.lane_workspace_bytes = {prepared->workspace_bytes()};
  runnable.stage.steps = {{ToString(convolution), 0, convolution.result_elements(),
                           problem.result_bytes, false, prepared}};
  runnable.stage.lane_groups = {StreamGroupOptions()};
  Bench bench(device);
  TF_INTEROP_RETURN_IF_ERROR(
      bench.SetUp({problem}, options, options.warmup_runs + options.repetitions));
  TF_INTEROP_RETURN_IF_ERROR(bench.AllocateWorkspaces(&runnable));

  Bytes result(problem.result_bytes), again(problem.result_bytes);
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(runnable, &result));
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(runnable, &again));
  measurement->is_deterministic = result == again;
  if (MultiplyAdds(convolution) <= options.reference_limit_multiply_adds) {
    measurement->relative_error = MeasureError(problem, result);
  }

  std::vector<TimeFigure> figures;
  TF_INTEROP_RETURN_IF_ERROR(TimeByTurns(&bench, {&runnable}, options, &figures));
  measurement->time = figures[0];
  measurement->algorithm = prepared->algorithm();
  measurement->workspace_bytes = prepared->workspace_bytes();
  measurement->copies = bench.copies();
  return Status::Ok();
}

// The same prepared steps, all on one lane.
PreparedStage InSequence(const PreparedStage& stage) {
  PreparedStage sequence = stage;
  for (PreparedStep& step : sequence.steps) step.lane = 0;
  sequence.lane_groups = {StreamGroupOptions()};
  sequence.lane_workspace_bytes = {
      *std::max_element(stage.lane_workspace_bytes.begin(), stage.lane_workspace_bytes.end())};
  return sequence;
}

}  // namespace

Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          Measurement* measurement) {
  return Guarded([&]() -> Status {
    *measurement = Measurement();
    TF_INTEROP_RETURN_IF_ERROR(CheckOptions(options));
    TF_INTEROP_RETURN_IF_ERROR(CheckHasWork(convolution));
    std::shared_ptr<const PreparedConvolution> prepared;
    TF_INTEROP_RETURN_IF_ERROR(device->backend()->Prepare(
        convolution, algorithm, options.workspace_limit_bytes, &prepared));
    return MeasurePrepared(device, convolution, options, prepared, measurement);
  });
}

Status MeasureStage(MeasuringDevice* device, const std::vector<StageStep>& steps,
                    const MeasureOptions& options, StageMeasurement* measurement) {
  return Guarded([&]() -> Status {
    *measurement = StageMeasurement();
    TF_INTEROP_RETURN_IF_ERROR(CheckOptions(options));
    if (steps.empty()) return InvalidArgument("Expected a stage with a convolution, got none.");
    for (const StageStep& step : steps) {
      TF_INTEROP_RETURN_IF_ERROR(CheckHasWork(step.convolution));
    }
    Runnable concurrent, sequential;
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareStage(device->backend(), steps, options.workspace_limit_bytes, &concurrent.stage));
    sequential.stage = InSequence(concurrent.stage);

    std::mt19937_64 random(options.seed);
    std::vector<Problem> problems;
    for (const StageStep& step : steps) problems.push_back(MakeProblem(step.convolution, &random));
    Bench bench(device);
    TF_INTEROP_RETURN_IF_ERROR(
        bench.SetUp(problems, options, 2 * (options.warmup_runs + options.repetitions)));
    TF_INTEROP_RETURN_IF_ERROR(bench.AllocateWorkspaces(&concurrent));
    TF_INTEROP_RETURN_IF_ERROR(bench.AllocateWorkspaces(&sequential));

    std::vector<TimeFigure> figures;
    TF_INTEROP_RETURN_IF_ERROR(TimeByTurns(&bench, {&concurrent, &sequential}, options, &figures));
    measurement->concurrent = figures[0];
    measurement->sequential = figures[1];
    for (const PreparedStep& step : concurrent.stage.steps) {
      measurement->algorithms.push_back(step.convolution->algorithm());
    }
    measurement->fallbacks = concurrent.stage.fallbacks;
    const std::vector<size_t>& lanes = concurrent.stage.lane_workspace_bytes;
    measurement->workspace_bytes = std::accumulate(lanes.begin(), lanes.end(), size_t{0});
    measurement->copies = bench.copies();
    return Status::Ok();
  });
}

}  // namespace tf_interop

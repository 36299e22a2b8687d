#include "cc_kernels/core/measure/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "cc_kernels/core/host/reference_convolution.h"
#include "cc_kernels/core/merged_convolution.h"
#include "cc_kernels/core/stage_replays.h"
#include "cc_kernels/core/stage_runner.h"

namespace tf_interop {
namespace {

// Reads as NaN in every type.
constexpr unsigned char kUnwritten = 0xFF;

PrepareOptions ToPrepareOptions(const MeasureOptions& options) {
  return {static_cast<size_t>(options.workspace_limit_bytes), options.allow_tf32 != 0};
}

// Treats an unknown algorithm's name, which comes from a list made elsewhere, like an algorithm
// that cannot run: measuring goes on with the others.
Status AsRefusal(const Status& status) {
  if (status.code() != StatusCode::kInvalidArgument) return status;
  return Unsupported(status.message());
}

// ---- Problems.

// Draws random elements of `dtype`. They repeat, because drawing is slow. The period is a prime
// number, so that an element of a wrong row or channel has a wrong value.
Bytes Draw(DataType dtype, int64_t elements, std::mt19937_64* random) {
  constexpr int64_t kMostDrawn = 1'048'573;
  std::normal_distribution<double> normal;
  std::vector<double> values(std::min(elements, kMostDrawn));
  for (double& value : values) value = normal(*random);
  Bytes drawn(elements * SizeOf(dtype));
  const size_t period = values.size() * SizeOf(dtype);
  Encode(dtype, values.data(), static_cast<int64_t>(values.size()), drawn.data());
  for (size_t i = period; i < drawn.size(); i += period) {
    std::copy_n(drawn.begin(), std::min(period, drawn.size() - i),
                drawn.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return drawn;
}

MeasuredProblem MakeProblem(const Convolution& c, std::mt19937_64* random) {
  MeasuredProblem problem;
  problem.convolution = c;
  for (const int64_t elements : InputElements(c)) {
    problem.inputs.push_back(Draw(c.dtype, elements, random));
  }
  return problem;
}

const MeasuredProblem& FindProblem(const Convolution& convolution, KeptProblem* kept) {
  if (!kept->problem || !(kept->problem->convolution == convolution)) {
    *kept = KeptProblem();  // frees the old one first
    std::mt19937_64 random;
    kept->problem = std::make_unique<MeasuredProblem>(MakeProblem(convolution, &random));
  }
  return *kept->problem;
}

void ComputeExpected(double most_multiply_adds, KeptProblem* kept) {
  constexpr double kMostCompared = 4096;
  const Convolution& c = kept->problem->convolution;
  const std::vector<Bytes>& inputs = kept->problem->inputs;
  if (c.multiply_adds() <= most_multiply_adds) {
    std::vector<std::vector<double>> decoded;
    for (const Bytes& input : inputs) {
      const auto elements = static_cast<int64_t>(input.size() / SizeOf(c.dtype));
      decoded.push_back(Decode(c.dtype, input.data(), elements));
    }
    kept->expected = Convolve(c, decoded);
    return;
  }
  const double of_one = c.multiply_adds() / static_cast<double>(c.result_elements());
  kept->places.resize(
      static_cast<size_t>(std::clamp(most_multiply_adds / of_one, 1.0, kMostCompared)));
  std::mt19937_64 random;
  std::uniform_int_distribution<int64_t> any(0, c.result_elements() - 1);
  for (int64_t& place : kept->places) place = any(random);
  std::vector<const void*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  kept->expected = ConvolveAt(c, pointers, kept->places);
}

// Computes Measurement::relative_error.
double ErrorOf(const Bytes& result, double most_multiply_adds, KeptProblem* kept) {
  const Convolution& c = kept->problem->convolution;
  const std::vector<double> got = Decode(c.dtype, result.data(), c.result_elements());
  if (!std::all_of(got.begin(), got.end(), [](double x) { return std::isfinite(x); })) {
    return std::numeric_limits<double>::infinity();
  }
  if (kept->expected.empty()) ComputeExpected(most_multiply_adds, kept);
  double difference = 0, largest = 0;
  for (size_t i = 0; i < kept->expected.size(); ++i) {
    const double value = got[kept->places.empty() ? i : kept->places[i]];
    difference = std::max(difference, std::fabs(value - kept->expected[i]));
    largest = std::max(largest, std::fabs(kept->expected[i]));
  }
  return difference == 0 ? 0 : difference / largest;
}

std::vector<MeasuredProblem> MakeProblems(const StageRequest& request) {
  const Stage& stage = request.stage;
  // The request's number for each image, or a negative one for the step alone.
  std::vector<int64_t> images(stage.steps.size());
  for (size_t i = 0; i < images.size(); ++i) {
    const bool is_shared = !request.images.empty() && request.images[i] >= 0;
    images[i] = is_shared ? request.images[i] : -1 - static_cast<int64_t>(i);
  }
  for (const Lane& lane : stage.lanes) {
    for (const size_t step : lane.steps) {
      if (lane.merged) images[step] = images[lane.steps.front()];
    }
  }
  std::mt19937_64 random;
  std::vector<MeasuredProblem> problems;
  std::map<int64_t, size_t> first_of;
  for (size_t i = 0; i < images.size(); ++i) {
    MeasuredProblem& problem =
        problems.emplace_back(MakeProblem(stage.steps[i].convolution, &random));
    const size_t first = first_of.try_emplace(images[i], i).first->second;
    if (first == i) continue;
    problem.image_of = first;
    problem.inputs[0].clear();
  }
  return problems;
}

// ---- Runs.

// Owns device memory. The destructor waits for the device and frees it.
class DeviceMemory {
 public:
  explicit DeviceMemory(MeasuringDevice* device) : device_(device) {}
  ~DeviceMemory() {
    // Any error was reported already.
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

 private:
  MeasuringDevice* const device_;
  std::vector<void*> allocated_;
};

// A prepared stage with the workspaces of its lanes.
struct Runnable {
  PreparedStage stage;
  std::vector<void*> workspaces;
};

// Runs several ways to compute the same problems on the device.
class Bench {
 public:
  Bench(MeasuringDevice* device, const MeasureOptions& options)
      : device_(device),
        options_(options),
        cold_bytes_(options.cold_bytes.value_or(device->cold_bytes())),
        memory_(device) {}

  Status SetUp(const std::vector<const MeasuredProblem*>& problems,
               const std::vector<Runnable*>& ways) {
    ways_ = ways;
    TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(cold_bytes_, &cold_));
    for (const MeasuredProblem* problem : problems) {
      TF_INTEROP_RETURN_IF_ERROR(AddTensors(*problem));
    }
    return AllocateWorkspaces();
  }

  // Runs the first way, which has one step.
  Status RunForResult(Bytes* result) {
    void* const data = buffers_.steps[0].result;
    result->assign(result->size(), kUnwritten);
    TF_INTEROP_RETURN_IF_ERROR(device_->CopyToDevice(result->data(), result->size(), data));
    TF_INTEROP_RETURN_IF_ERROR(Run(*ways_[0]));
    TF_INTEROP_RETURN_IF_ERROR(device_->Synchronize());
    return device_->CopyFromDevice(data, result->size(), result->data());
  }

  // Appends the time of each way.
  Status TimeByTurns(std::vector<TfiTime>* times) {
    using Clock = std::chrono::steady_clock;
    const std::chrono::duration<double, std::milli> warmup(options_.warmup_ms);
    std::vector<std::vector<double>> all_us(ways_.size());
    size_t turn = 0;
    for (const auto start = Clock::now(); Clock::now() - start < warmup;) {
      TF_INTEROP_RETURN_IF_ERROR(TakeTurn(turn++, &all_us));
    }
    for (std::vector<double>& each : all_us) each.clear();
    fills_ = 1;  // the first runs may have loaded code, which is slow on the host
    for (int64_t i = 0; i < options_.repetitions; ++i) {
      TF_INTEROP_RETURN_IF_ERROR(TakeTurn(turn++, &all_us));
    }
    for (std::vector<double>& each : all_us) times->push_back(Summarize(std::move(each)));
    return Status::Ok();
  }

  // Runs the first way and returns its outcome. `traced` is the reason if there are no kernels.
  Status TraceRun(std::vector<TracedKernel>* kernels, Status* traced) {
    kernels->clear();
    *traced = device_->StartTrace();
    if (!traced->ok()) return Status::Ok();
    Status ran = Run(*ways_[0]);
    ran.Update(device_->Synchronize());
    *traced = device_->StopTrace(kernels);
    if (!traced->ok()) kernels->clear();
    return ran;
  }

 private:
  // A fill takes about 56 µs on an H200. No stage takes as long to enqueue as this many fills.
  static constexpr int kMostFills = 64;

  static TfiTime Summarize(std::vector<double> times_us) {
    std::sort(times_us.begin(), times_us.end());
    const auto percentile = [&](double fraction) {
      const double position = fraction * static_cast<double>(times_us.size() - 1);
      const auto below = static_cast<size_t>(position);
      const size_t above = std::min(below + 1, times_us.size() - 1);
      return times_us[below] +
             (position - static_cast<double>(below)) * (times_us[above] - times_us[below]);
    };
    return {percentile(0.5), (percentile(0.9) - percentile(0.1)) / 2};
  }

  Status AddTensors(const MeasuredProblem& problem) {
    ConvolutionBuffers buffers;
    for (size_t i = 0; i < problem.inputs.size(); ++i) {
      if (i == 0 && problem.image_of) {
        buffers.inputs[i] = buffers_.steps[*problem.image_of].inputs[i];
        continue;
      }
      const Bytes& content = problem.inputs[i];
      void* input = nullptr;
      TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(content.size(), &input));
      TF_INTEROP_RETURN_IF_ERROR(device_->CopyToDevice(content.data(), content.size(), input));
      buffers.inputs[i] = input;
    }
    TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(problem.result_bytes(), &buffers.result));
    buffers_.steps.push_back(buffers);
    return Status::Ok();
  }

  // The ways never run together, so lanes with the same number share a workspace.
  Status AllocateWorkspaces() {
    std::vector<size_t> bytes;
    for (const Runnable* way : ways_) {
      const std::vector<size_t>& lanes = way->stage.lane_workspace_bytes;
      bytes.resize(std::max(bytes.size(), lanes.size()));
      for (size_t i = 0; i < lanes.size(); ++i) bytes[i] = std::max(bytes[i], lanes[i]);
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      void* workspace = nullptr;
      TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(bytes[i], &workspace));
      for (Runnable* way : ways_) {
        if (i < way->stage.lane_workspace_bytes.size()) way->workspaces.push_back(workspace);
      }
    }
    return Status::Ok();
  }

  // Times each way once, each turn in a different order.
  Status TakeTurn(size_t turn, std::vector<std::vector<double>>* all_us) {
    for (size_t i = 0; i < ways_.size(); ++i) {
      const size_t way = (i + turn) % ways_.size();
      double elapsed_us = 0;
      TF_INTEROP_RETURN_IF_ERROR(TimeRun(*ways_[way], &elapsed_us));
      (*all_us)[way].push_back(elapsed_us);
    }
    return Status::Ok();
  }

  Status TimeRun(const Runnable& way, double* elapsed_us) {
    while (true) {
      for (int i = 0; i < fills_; ++i) {
        TF_INTEROP_RETURN_IF_ERROR(
            device_->backend()->FillZero(cold_, cold_bytes_, device_->stream()));
      }
      if (options_.warm_caches) TF_INTEROP_RETURN_IF_ERROR(Run(way));
      std::shared_ptr<const TimeMark> begin, end;
      TF_INTEROP_RETURN_IF_ERROR(Mark(nullptr, &begin));
      TF_INTEROP_RETURN_IF_ERROR(Run(way));
      TF_INTEROP_RETURN_IF_ERROR(Mark(begin, &end));
      const bool is_ahead = device_->IsBefore(*begin);
      TF_INTEROP_RETURN_IF_ERROR(device_->Synchronize());
      const std::optional<int64_t> begin_ns = begin->ReadNs(), end_ns = end->ReadNs();
      if (!begin_ns || !end_ns) return Internal("The device did not report the time of a run.");
      *elapsed_us = static_cast<double>(*end_ns - *begin_ns) / 1e3;
      if (is_ahead || fills_ >= kMostFills) return Status::Ok();
      fills_ *= 2;
    }
  }

  Status Mark(const std::shared_ptr<const TimeMark>& since, std::shared_ptr<const TimeMark>* mark) {
    return device_->backend()->Mark(device_->stream(), since, mark);
  }

  Status Run(const Runnable& way) {
    buffers_.lane_workspaces = way.workspaces;
    return RunStage(device_->backend(), way.stage, buffers_, device_->stream());
  }

  MeasuringDevice* const device_;
  const MeasureOptions& options_;
  const size_t cold_bytes_;
  std::vector<Runnable*> ways_;
  StageBuffers buffers_;  // with the workspaces of the last run
  void* cold_ = nullptr;
  int fills_ = 1;
  DeviceMemory memory_;
};

// Makes the backend forget plans: one takes over a megabyte, and a profile has tens of thousands.
struct ForgetAtEnd {
  Backend* backend;
  ~ForgetAtEnd() { backend->ForgetPrepared(); }
};

// ---- A stage.

// Puts the stage's convolutions, with `algorithms`, on one lane.
Stage WithAlgorithms(const Stage& stage, const std::vector<std::string>& algorithms) {
  Stage changed = InSequence(stage);
  for (size_t i = 0; i < changed.steps.size(); ++i) changed.steps[i].algorithm = algorithms[i];
  return changed;
}

std::vector<std::string> AlgorithmsOf(const PreparedStage& stage) {
  std::vector<std::string> algorithms;
  for (const PreparedStep& step : stage.steps) {
    algorithms.push_back(step.convolution ? step.convolution->algorithm() : "");
  }
  for (const MergedSteps& merged : stage.merged) {
    for (const size_t step : merged.steps) {
      algorithms[step] = merged.merge.convolution->algorithm();
    }
  }
  return algorithms;
}

// Like PrepareStage, but fails if a pinned algorithm is refused or a lane cannot be merged.
Status PrepareAsPinned(Backend* backend, const Stage& stage, const PrepareOptions& options,
                       PreparedStage* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend, stage, options, prepared));
  for (const Status& status : prepared->unmerged) {
    return AsRefusal(Status(status.code(), kUnmergedLane + (", " + status.message())));
  }
  for (const Status& status : prepared->fallbacks) return AsRefusal(status);
  return Status::Ok();
}

}  // namespace

Status ResolveAlgorithm(MeasuringDevice* device, const Convolution& convolution,
                        const std::string& algorithm, const MeasureOptions& options,
                        std::shared_ptr<const PreparedConvolution>* resolved) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(convolution));
  return AsRefusal(
      device->backend()->Prepare(convolution, algorithm, ToPrepareOptions(options), resolved));
}

Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          KeptProblem* kept, Measurement* measurement) {
  *measurement = Measurement();
  const ForgetAtEnd forget = {device->backend()};
  std::shared_ptr<const PreparedConvolution> prepared;
  TF_INTEROP_RETURN_IF_ERROR(ResolveAlgorithm(device, convolution, algorithm, options, &prepared));
  const MeasuredProblem& problem = FindProblem(convolution, kept);
  Runnable runnable = {PreparedAlone(ToString(convolution), prepared), {}};
  Bench bench(device, options);
  TF_INTEROP_RETURN_IF_ERROR(bench.SetUp({&problem}, {&runnable}));

  Bytes result(problem.result_bytes()), again(result.size());
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(&result));
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(&again));
  measurement->is_deterministic = result == again;
  measurement->relative_error = ErrorOf(result, options.reference_multiply_adds, kept);

  std::vector<TfiTime> times;
  TF_INTEROP_RETURN_IF_ERROR(bench.TimeByTurns(&times));
  measurement->time = times[0];
  measurement->algorithm = prepared->algorithm();
  measurement->reduces_precision = prepared->reduces_precision();
  measurement->workspace_bytes = static_cast<int64_t>(prepared->workspace_bytes());
  if (!options.trace_kernels) return Status::Ok();
  Status traced;
  TF_INTEROP_RETURN_IF_ERROR(bench.TraceRun(&measurement->kernels, &traced));
  measurement->trace_error = traced.message();
  return Status::Ok();
}

Status MeasureStage(MeasuringDevice* device, const StageRequest& request,
                    const MeasureOptions& options, StageMeasurement* measurement) {
  *measurement = StageMeasurement();
  Backend* const backend = device->backend();
  const Stage& stage = request.stage;
  const PrepareOptions prepare = ToPrepareOptions(options);
  Runnable concurrent, same_sequential, sequential;
  TF_INTEROP_RETURN_IF_ERROR(PrepareAsPinned(backend, stage, prepare, &concurrent.stage));
  if (concurrent.stage.merged.empty()) {
    same_sequential.stage = PreparedInSequence(concurrent.stage);
    // A graph like the stage's, or the comparison would be one of launches.
    if (concurrent.stage.replays != nullptr) {
      same_sequential.stage.replays = std::make_shared<StageReplays>();
    }
  } else {
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareStage(backend, InSequence(stage), prepare, &same_sequential.stage));
  }
  measurement->algorithms = AlgorithmsOf(concurrent.stage);
  measurement->sequential_algorithms = AlgorithmsOf(same_sequential.stage);
  std::vector<Runnable*> ways = {&concurrent, &same_sequential};
  if (!request.sequential_algorithms.empty()) {
    TF_INTEROP_RETURN_IF_ERROR(PrepareAsPinned(
        backend, WithAlgorithms(stage, request.sequential_algorithms), prepare, &sequential.stage));
    const std::vector<std::string> others = AlgorithmsOf(sequential.stage);
    // If both sequences are the same, one measurement serves both.
    if (others != measurement->sequential_algorithms) ways.push_back(&sequential);
    measurement->sequential_algorithms = others;
  }
  const std::vector<size_t>& lanes = concurrent.stage.lane_workspace_bytes;
  measurement->workspace_bytes =
      static_cast<int64_t>(std::accumulate(lanes.begin(), lanes.end(), size_t{0}));
  TF_INTEROP_RETURN_IF_ERROR(CheckGroups(backend, concurrent.stage));

  const std::vector<MeasuredProblem> problems = MakeProblems(request);
  std::vector<const MeasuredProblem*> pointers;
  for (const MeasuredProblem& problem : problems) pointers.push_back(&problem);
  Bench bench(device, options);
  TF_INTEROP_RETURN_IF_ERROR(bench.SetUp(pointers, ways));
  std::vector<TfiTime> times;
  TF_INTEROP_RETURN_IF_ERROR(bench.TimeByTurns(&times));
  measurement->concurrent = times[0];
  measurement->same_sequential = times[1];
  measurement->sequential = times.back();
  return Status::Ok();
}

}  // namespace tf_interop

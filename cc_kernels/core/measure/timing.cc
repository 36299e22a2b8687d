#include "cc_kernels/core/measure/timing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "cc_kernels/core/host/reference_convolution.h"
#include "cc_kernels/core/merged_convolution.h"
#include "cc_kernels/core/stage_runner.h"

namespace tf_interop {
namespace {

// Reads as NaN in every type.
constexpr unsigned char kUnwritten = 0xFF;

PrepareOptions ToPrepareOptions(const MeasureOptions& options) {
  return {static_cast<size_t>(std::max<int64_t>(options.workspace_limit_bytes, 0)),
          options.allow_tf32 != 0};
}

Status Validate(const MeasureOptions& options) {
  // So few that those of all ways to run can be counted, and their times kept.
  constexpr int64_t kMostRuns = 1'000'000;
  if (options.warmup_runs >= 0 && options.warmup_runs <= kMostRuns && options.repetitions >= 1 &&
      options.repetitions <= kMostRuns) {
    return Status::Ok();
  }
  return InvalidArgument("Expected 0 to " + std::to_string(kMostRuns) + " warm-up runs and 1 to " +
                         std::to_string(kMostRuns) + " repetitions, got " +
                         std::to_string(options.warmup_runs) + " and " +
                         std::to_string(options.repetitions) + ".");
}

// Checks that the convolution is valid and computes something from something.
Status CheckHasWork(const Convolution& c) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(c));
  if (c.computes_something()) return Status::Ok();
  return InvalidArgument("Expected a convolution with something to compute, got " + ToString(c) +
                         ".");
}

// What Prepare says of an algorithm. A name that the backend does not know comes from a list that
// was made elsewhere: it is refused like an algorithm that cannot run, and others go on.
Status AsRefusal(const std::string& algorithm, const Status& status) {
  if (algorithm.empty() || status.code() != StatusCode::kInvalidArgument) return status;
  return Unsupported(status.message());
}

// ---- Problems.

// Draws the operands.
MeasuredProblem MakeProblem(const Convolution& c, std::mt19937_64* random) {
  MeasuredProblem problem;
  problem.convolution = c;
  problem.result_bytes = c.result_elements() * SizeOf(c.dtype);
  std::normal_distribution<double> normal;
  for (const int64_t elements : InputElements(c)) {
    std::vector<double> values(elements);
    for (double& value : values) value = normal(*random);
    Encode(c.dtype, values.data(), elements,
           problem.inputs.emplace_back(elements * SizeOf(c.dtype)).data());
  }
  return problem;
}

// What belongs to `convolution` and `seed`.
const MeasuredProblem& FindProblem(const Convolution& convolution, uint64_t seed,
                                   KeptProblem* kept) {
  if (!kept->problem || kept->seed != seed || !(kept->problem->convolution == convolution)) {
    *kept = KeptProblem();  // first, so that memory holds one at a time
    std::mt19937_64 random(seed);
    kept->problem = MakeProblem(convolution, &random);
    kept->seed = seed;
  }
  return *kept->problem;
}

// See Measurement::relative_error.
double ErrorOf(const MeasuredProblem& problem, const Bytes& result, double limit_multiply_adds,
               KeptProblem* kept) {
  const Convolution& c = problem.convolution;
  const std::vector<double> got = Decode(c.dtype, result.data(), c.result_elements());
  if (!std::all_of(got.begin(), got.end(), [](double x) { return std::isfinite(x); })) {
    return std::numeric_limits<double>::infinity();
  }
  if (MultiplyAdds(c) > limit_multiply_adds) return -1;
  if (!kept->expected) {
    std::vector<std::vector<double>> inputs;
    for (const Bytes& input : problem.inputs) {
      const auto elements = static_cast<int64_t>(input.size() / SizeOf(c.dtype));
      inputs.push_back(Decode(c.dtype, input.data(), elements));
    }
    kept->expected = Convolve(c, inputs);
  }
  double difference = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference = std::max(difference, std::fabs(got[i] - (*kept->expected)[i]));
    largest = std::max(largest, std::fabs((*kept->expected)[i]));
  }
  return difference == 0 ? 0 : difference / largest;
}

// The operands of all steps; those of a merged lane share the image of its first.
std::vector<MeasuredProblem> MakeProblems(const Stage& stage, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<MeasuredProblem> problems;
  for (const Step& step : stage.steps) problems.push_back(MakeProblem(step.convolution, &random));
  for (const Lane& lane : stage.lanes) {
    for (size_t i = 1; lane.merged && i < lane.steps.size(); ++i) {
      problems[lane.steps[i]].image_of = lane.steps.front();
      problems[lane.steps[i]].inputs[0].clear();
    }
  }
  return problems;
}

// ---- Runs.

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

 private:
  MeasuringDevice* const device_;
  std::vector<void*> allocated_;
};

// A prepared stage with the workspaces of its lanes.
struct Runnable {
  PreparedStage stage;
  std::vector<void*> workspaces;
};

// The device, the ways to run on it, and the copies of all tensors that runs go through.
class Bench {
 public:
  Bench(MeasuringDevice* device, const MeasureOptions& options)
      : device_(device), options_(options), memory_(device) {}

  Status SetUp(const std::vector<const MeasuredProblem*>& problems,
               const std::vector<Runnable*>& ways) {
    ways_ = ways;
    const MeasuringDefaults defaults = device_->defaults();
    head_start_bytes_ = Given(options_.head_start_bytes, defaults.head_start_bytes);
    TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(head_start_bytes_, &head_start_));
    size_t bytes = 0;
    for (const MeasuredProblem* problem : problems) {
      bytes += problem->result_bytes;
      for (const Bytes& input : problem->inputs) bytes += input.size();
    }
    const size_t runs = ways.size() * (options_.warmup_runs + options_.repetitions);
    copies_.resize(std::min(Given(options_.cache_bytes, defaults.cache_bytes) / bytes + 1, runs));
    for (StageBuffers& copy : copies_) {
      for (const MeasuredProblem* problem : problems) {
        TF_INTEROP_RETURN_IF_ERROR(AddCopy(*problem, &copy));
      }
    }
    return AllocateWorkspaces();
  }

  // Runs the first way on the first copy, and gives the result of its only step.
  Status RunForResult(Bytes* result) {
    std::fill(result->begin(), result->end(), kUnwritten);
    void* const data = copies_[0].steps[0].result;
    TF_INTEROP_RETURN_IF_ERROR(device_->CopyToDevice(result->data(), result->size(), data));
    TF_INTEROP_RETURN_IF_ERROR(RunOn(*ways_[0], &copies_[0]));
    TF_INTEROP_RETURN_IF_ERROR(device_->Synchronize());
    return device_->CopyFromDevice(data, result->size(), result->data());
  }

  // Times the ways by turns; times[i] are those of the i-th.
  Status TimeByTurns(std::vector<TfiTime>* times) {
    std::vector<std::vector<double>> all_us(ways_.size());
    for (int64_t turn = 0; turn < options_.warmup_runs + options_.repetitions; ++turn) {
      for (size_t i = 0; i < ways_.size(); ++i) {
        const size_t way = (i + turn) % ways_.size();
        double elapsed_us = 0;
        TF_INTEROP_RETURN_IF_ERROR(TimeRun(*ways_[way], &elapsed_us));
        if (turn >= options_.warmup_runs) all_us[way].push_back(elapsed_us);
      }
    }
    for (std::vector<double>& each : all_us) times->push_back(Summarize(std::move(each)));
    return Status::Ok();
  }

  // Runs the first way. `traced` is why there are no kernels; the result is the run's own.
  Status TraceRun(std::vector<TracedKernel>* kernels, Status* traced) {
    kernels->clear();
    *traced = device_->StartTrace();
    if (!traced->ok()) return Status::Ok();
    Status ran = RunOnNextCopy(*ways_[0]);
    ran.Update(device_->Synchronize());
    *traced = device_->StopTrace(kernels);
    if (!traced->ok()) kernels->clear();
    return ran;
  }

 private:
  static size_t Given(int64_t value, size_t otherwise) {
    return value < 0 ? otherwise : static_cast<size_t>(value);
  }

  static TfiTime Summarize(std::vector<double> times_us) {
    std::sort(times_us.begin(), times_us.end());
    // The value below which a fraction of the times lie.
    const auto percentile = [&](double fraction) {
      const double position = fraction * static_cast<double>(times_us.size() - 1);
      const auto below = static_cast<size_t>(position);
      const size_t above = std::min(below + 1, times_us.size() - 1);
      return times_us[below] +
             (position - static_cast<double>(below)) * (times_us[above] - times_us[below]);
    };
    return {percentile(0.5), (percentile(0.9) - percentile(0.1)) / 2};
  }

  Status AddCopy(const MeasuredProblem& problem, StageBuffers* copy) {
    ConvolutionBuffers buffers;
    for (size_t i = 0; i < problem.inputs.size(); ++i) {
      if (i == 0 && problem.image_of) {
        buffers.inputs[i] = copy->steps[*problem.image_of].inputs[i];
        continue;
      }
      const Bytes& content = problem.inputs[i];
      void* input = nullptr;
      TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(content.size(), &input));
      TF_INTEROP_RETURN_IF_ERROR(device_->CopyToDevice(content.data(), content.size(), input));
      buffers.inputs[i] = input;
    }
    TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(problem.result_bytes, &buffers.result));
    copy->steps.push_back(buffers);
    return Status::Ok();
  }

  // Lanes of one number share a workspace: the ways to run never run at the same time.
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

  Status TimeRun(const Runnable& runnable, double* elapsed_us) {
    if (head_start_bytes_ > 0) {
      TF_INTEROP_RETURN_IF_ERROR(
          device_->backend()->FillZero(head_start_, head_start_bytes_, device_->stream()));
    }
    TF_INTEROP_RETURN_IF_ERROR(device_->StartTimer());
    TF_INTEROP_RETURN_IF_ERROR(RunOnNextCopy(runnable));
    TF_INTEROP_RETURN_IF_ERROR(device_->StopTimer());
    return device_->ReadTimer(elapsed_us);
  }

  Status RunOnNextCopy(const Runnable& runnable) {
    StageBuffers& copy = copies_[next_copy_];
    next_copy_ = (next_copy_ + 1) % copies_.size();
    return RunOn(runnable, &copy);
  }

  Status RunOn(const Runnable& runnable, StageBuffers* copy) {
    copy->lane_workspaces = runnable.workspaces;
    return RunStage(device_->backend(), runnable.stage, *copy, device_->stream());
  }

  MeasuringDevice* const device_;
  const MeasureOptions& options_;
  std::vector<Runnable*> ways_;
  std::vector<StageBuffers> copies_;  // without workspaces
  size_t next_copy_ = 0;
  void* head_start_ = nullptr;
  size_t head_start_bytes_ = 0;
  DeviceMemory memory_;
};

// ---- One convolution.

// Makes ready what is to be measured alone.
Status PrepareAlone(Backend* backend, const Convolution& convolution, const std::string& algorithm,
                    const MeasureOptions& options,
                    std::shared_ptr<const PreparedConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(options));
  TF_INTEROP_RETURN_IF_ERROR(CheckHasWork(convolution));
  return AsRefusal(algorithm,
                   backend->Prepare(convolution, algorithm, ToPrepareOptions(options), prepared));
}

// ---- A stage.

// The same convolutions with `algorithms`, all on one lane.
Stage WithAlgorithms(const Stage& stage, const std::vector<std::string>& algorithms) {
  Stage changed = InSequence(stage);
  for (size_t i = 0; i < changed.steps.size(); ++i) changed.steps[i].algorithm = algorithms[i];
  return changed;
}

std::vector<std::string> AlgorithmsOf(const PreparedStage& stage) {
  std::vector<std::string> algorithms;
  for (const PreparedStep& step : stage.steps) algorithms.push_back(step.convolution->algorithm());
  for (const MergedSteps& merged : stage.merged) {
    for (const size_t step : merged.steps) {
      algorithms[step] = merged.merge.convolution->algorithm();
    }
  }
  return algorithms;
}

// Ok, or why the steps of a lane cannot run as they are pinned: merged, or each by itself.
Status CheckLane(Backend* backend, const Stage& stage, const Lane& lane,
                 const PrepareOptions& options) {
  std::vector<Convolution> parts;
  std::vector<std::string> algorithms;
  std::string names;
  for (const size_t i : lane.steps) {
    const Step& step = stage.steps[i];
    parts.push_back(step.convolution);
    algorithms.push_back(step.algorithm);
    names += (names.empty() ? "'" : ", '") + step.name + "'";
    if (lane.merged || step.algorithm.empty()) continue;
    std::shared_ptr<const PreparedConvolution> prepared;
    const Status status = AsRefusal(
        step.algorithm, backend->Prepare(step.convolution, step.algorithm, options, &prepared));
    if (status.ok()) continue;
    return Status(status.code(), "Convolution '" + step.name + "' with algorithm " +
                                     step.algorithm + ": " + status.message());
  }
  if (!lane.merged) return Status::Ok();
  PreparedMerge merge;
  Status status =
      AsRefusal(algorithms.front(), PrepareMerge(backend, parts, algorithms, options, &merge));
  if (status.ok()) return status;
  return Status(status.code(), "Convolutions " + names + " merged: " + status.message());
}

// As PrepareStage, but a pinned algorithm that cannot be had, or a lane that cannot be merged, is a
// failure, of its own kind.
Status PrepareAsPinned(Backend* backend, const Stage& stage, const PrepareOptions& options,
                       PreparedStage* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(stage));
  for (const Lane& lane : stage.lanes) {
    TF_INTEROP_RETURN_IF_ERROR(CheckLane(backend, stage, lane, options));
  }
  TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend, stage, options, prepared));
  if (!prepared->unmerged.empty()) {
    return Unsupported(std::string(kUnmergedLane) + ": " + prepared->unmerged.front());
  }
  if (!prepared->fallbacks.empty()) return Unsupported(prepared->fallbacks.front());
  return Status::Ok();
}

// Makes sure that every lane gets the stream group that it asks for, all at the same time: without,
// RunStage would go on, and something else would be measured. Also gives how many SMs the device
// gives to each lane.
Status CheckGroups(Backend* backend, const PreparedStage& stage, std::vector<int>* sm_counts) {
  std::vector<std::unique_ptr<StreamGroup>> groups;
  Status status;
  for (const std::optional<StreamGroupOptions>& options : stage.lane_groups) {
    if (!options) continue;
    std::unique_ptr<StreamGroup> group;
    status = backend->Acquire(*options, &group);
    if (!status.ok()) break;
    if (!options->partition.empty()) sm_counts->push_back(group->sm_count());
    groups.push_back(std::move(group));
  }
  // The backend keeps them for the runs.
  for (std::unique_ptr<StreamGroup>& group : groups) backend->Release(std::move(group));
  return status;
}

Status CheckRequest(const StageRequest& request) {
  const size_t steps = request.stage.steps.size();
  if (steps == 0) return InvalidArgument("Expected a stage with a convolution, got none.");
  for (const Step& step : request.stage.steps) {
    TF_INTEROP_RETURN_IF_ERROR(CheckHasWork(step.convolution));
  }
  const size_t algorithms = request.sequential_algorithms.size();
  if (algorithms == 0 || algorithms == steps) return Status::Ok();
  return InvalidArgument("Expected an algorithm of the sequence for none or all of " +
                         std::to_string(steps) + " convolutions, got " +
                         std::to_string(algorithms) + ".");
}

}  // namespace

Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          KeptProblem* kept, Measurement* measurement) {
  *measurement = Measurement();
  std::shared_ptr<const PreparedConvolution> prepared;
  TF_INTEROP_RETURN_IF_ERROR(
      PrepareAlone(device->backend(), convolution, algorithm, options, &prepared));
  const MeasuredProblem& problem = FindProblem(convolution, options.seed, kept);
  Runnable runnable = {PreparedAlone(ToString(convolution), prepared), {}};
  Bench bench(device, options);
  TF_INTEROP_RETURN_IF_ERROR(bench.SetUp({&problem}, {&runnable}));

  Bytes result(problem.result_bytes), again(problem.result_bytes);
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(&result));
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(&again));
  measurement->is_deterministic = result == again;
  measurement->relative_error =
      ErrorOf(problem, result, options.reference_limit_multiply_adds, kept);

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

Status ResolveAlgorithm(MeasuringDevice* device, const Convolution& convolution,
                        const std::string& algorithm, const MeasureOptions& options,
                        ResolvedAlgorithm* resolved) {
  std::shared_ptr<const PreparedConvolution> prepared;
  TF_INTEROP_RETURN_IF_ERROR(
      PrepareAlone(device->backend(), convolution, algorithm, options, &prepared));
  *resolved = {prepared->algorithm(), prepared->reduces_precision()};
  return Status::Ok();
}

Status MeasureStage(MeasuringDevice* device, const StageRequest& request,
                    const MeasureOptions& options, StageMeasurement* measurement) {
  *measurement = StageMeasurement();
  TF_INTEROP_RETURN_IF_ERROR(Validate(options));
  TF_INTEROP_RETURN_IF_ERROR(CheckRequest(request));
  Backend* const backend = device->backend();
  const Stage& stage = request.stage;
  const PrepareOptions prepare = ToPrepareOptions(options);
  Runnable concurrent, same_sequential, sequential;
  TF_INTEROP_RETURN_IF_ERROR(PrepareAsPinned(backend, stage, prepare, &concurrent.stage));
  if (concurrent.stage.merged.empty()) {
    same_sequential.stage = PreparedInSequence(concurrent.stage);
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
    // Where both sequences are the same, one time serves for both.
    if (others != measurement->sequential_algorithms) ways.push_back(&sequential);
    measurement->sequential_algorithms = others;
  }
  const std::vector<size_t>& lanes = concurrent.stage.lane_workspace_bytes;
  measurement->workspace_bytes =
      static_cast<int64_t>(std::accumulate(lanes.begin(), lanes.end(), size_t{0}));
  TF_INTEROP_RETURN_IF_ERROR(CheckGroups(backend, concurrent.stage, &measurement->sm_counts));

  const std::vector<MeasuredProblem> problems = MakeProblems(stage, options.seed);
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

#include "cc_kernels/core/measure.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
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

void FillNormal(DataType dtype, std::mt19937_64* random, Bytes* tensor) {
  switch (dtype) {
    case DataType::kFloat:
      return FillNormal<float>(random, tensor);
    case DataType::kHalf:
      return FillNormal<Eigen::half>(random, tensor);
    case DataType::kBFloat16:
      return FillNormal<Eigen::bfloat16>(random, tensor);
    case DataType::kDouble:
      return FillNormal<double>(random, tensor);
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
  switch (dtype) {
    case DataType::kFloat:
      return Decode<float>(tensor);
    case DataType::kHalf:
      return Decode<Eigen::half>(tensor);
    case DataType::kBFloat16:
      return Decode<Eigen::bfloat16>(tensor);
    case DataType::kDouble:
      return Decode<double>(tensor);
  }
  return {};
}

// A convolution with operands in host memory.
struct Problem {
  Convolution convolution;
  std::vector<Bytes> inputs;
  size_t result_bytes = 0;
  // The place, among the problems of a stage, of the one whose image (the first input) this one
  // reads in place of its own, which is empty then.
  std::optional<size_t> image_of;

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
    FillNormal(c.dtype, random, &input);
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
  Status SetUp(const std::vector<const Problem*>& problems, const MeasureOptions& options,
               int64_t runs) {
    const MeasuringDefaults defaults = device_->defaults();
    head_start_bytes_ = options.head_start_bytes.value_or(defaults.head_start_bytes);
    TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(head_start_bytes_, &head_start_));
    size_t bytes = 0;
    for (const Problem* problem : problems) bytes += problem->bytes();
    const size_t wanted = options.cache_bytes.value_or(defaults.cache_bytes) / bytes + 1;
    copies_.resize(std::min(wanted, static_cast<size_t>(runs)));
    for (std::vector<ConvolutionBuffers>& copy : copies_) {
      for (const Problem* problem : problems) {
        ConvolutionBuffers buffers;
        for (size_t i = 0; i < problem->inputs.size(); ++i) {
          if (i == 0 && problem->image_of) {
            buffers.inputs[i] = copy[*problem->image_of].inputs[i];
            continue;
          }
          void* input = nullptr;
          TF_INTEROP_RETURN_IF_ERROR(memory_.AllocateCopy(problem->inputs[i], &input));
          buffers.inputs[i] = input;
        }
        TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(problem->result_bytes, &buffers.result));
        copy.push_back(buffers);
      }
    }
    return Status::Ok();
  }

  // Lanes of one number share a workspace: the ways to run never run at the same time.
  Status AllocateWorkspaces(const std::vector<Runnable*>& ways) {
    std::vector<size_t> bytes;
    for (const Runnable* way : ways) {
      const std::vector<size_t>& lanes = way->stage.lane_workspace_bytes;
      bytes.resize(std::max(bytes.size(), lanes.size()));
      for (size_t i = 0; i < lanes.size(); ++i) bytes[i] = std::max(bytes[i], lanes[i]);
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      void* workspace = nullptr;
      TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(bytes[i], &workspace));
      for (Runnable* way : ways) {
        if (i < way->stage.lane_workspace_bytes.size()) way->workspaces.push_back(workspace);
      }
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
    TF_INTEROP_RETURN_IF_ERROR(RunOnNextCopy(runnable));
    TF_INTEROP_RETURN_IF_ERROR(device_->StopTimer());
    return device_->ReadTimer(elapsed_us);
  }

  // Runs on the next copy. `traced` is why there are no kernels; the result is the run's own.
  Status TraceRun(const Runnable& runnable, std::vector<TracedKernel>* kernels, Status* traced) {
    kernels->clear();
    *traced = device_->StartTrace();
    if (!traced->ok()) return Status::Ok();
    Status ran = RunOnNextCopy(runnable);
    ran.Update(device_->Synchronize());
    *traced = device_->StopTrace(kernels);
    if (!traced->ok()) kernels->clear();
    return ran;
  }

  int64_t copies() const { return static_cast<int64_t>(copies_.size()); }

 private:
  Status RunOn(const Runnable& runnable, const std::vector<ConvolutionBuffers>& copy) {
    return RunStage(device_->backend(), runnable.stage, copy, runnable.workspaces,
                    device_->stream());
  }

  Status RunOnNextCopy(const Runnable& runnable) {
    const std::vector<ConvolutionBuffers>& copy = copies_[next_copy_];
    next_copy_ = (next_copy_ + 1) % copies_.size();
    return RunOn(runnable, copy);
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
    difference = std::max(difference, std::fabs(got[i] - expected[i]));
    largest = std::max(largest, std::fabs(expected[i]));
  }
  if (difference == 0) return 0;
  return difference / largest;
}

std::vector<double> ComputeExpected(const Problem& problem) {
  std::vector<std::vector<double>> inputs;
  for (const Bytes& input : problem.inputs) {
    inputs.push_back(Decode(problem.convolution.dtype, input));
  }
  return ComputeInFloat64(problem.convolution, inputs);
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

// What Prepare says of an algorithm. A name that the backend does not know comes from a list that
// was made elsewhere: it is refused like an algorithm that cannot run, and others go on.
Status AsRefusal(const std::string& algorithm, const Status& status) {
  if (algorithm.empty() || status.code() != StatusCode::kInvalidArgument) return status;
  return Unsupported(status.message());
}

}  // namespace

struct ProblemCache::Entry {
  // The error of `result`; see Measurement::relative_error.
  std::optional<double> Check(const Bytes& result, double limit_multiply_adds) {
    const std::vector<double> got = Decode(problem.convolution.dtype, result);
    if (!std::all_of(got.begin(), got.end(), [](double x) { return std::isfinite(x); })) {
      return std::numeric_limits<double>::infinity();
    }
    if (MultiplyAdds(problem.convolution) > limit_multiply_adds) return std::nullopt;
    if (!expected) expected = ComputeExpected(problem);
    return RelativeError(*expected, got);
  }

  uint64_t seed = 0;
  Problem problem;
  std::optional<std::vector<double>> expected;  // computed when it is first asked for
};

ProblemCache::ProblemCache() = default;
ProblemCache::~ProblemCache() = default;

ProblemCache::Entry& ProblemCache::Get(const Convolution& convolution, uint64_t seed) {
  if (last_ && last_->seed == seed && last_->problem.convolution == convolution) return *last_;
  last_.reset();  // first, so that memory holds one at a time
  auto entry = std::make_unique<Entry>();
  std::mt19937_64 random(seed);
  entry->seed = seed;
  entry->problem = MakeProblem(convolution, &random);
  last_ = std::move(entry);
  return *last_;
}

namespace {

// Makes ready what is to be measured alone.
Status PrepareAlone(Backend* backend, const Convolution& convolution, const std::string& algorithm,
                    const MeasureOptions& options,
                    std::shared_ptr<const PreparedConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(CheckOptions(options));
  TF_INTEROP_RETURN_IF_ERROR(CheckHasWork(convolution));
  backend->set_allow_tf32(options.allow_tf32);
  return AsRefusal(
      algorithm, backend->Prepare(convolution, algorithm, options.workspace_limit_bytes, prepared));
}

Status MeasurePrepared(MeasuringDevice* device, const MeasureOptions& options,
                       const std::shared_ptr<const PreparedConvolution>& prepared,
                       ProblemCache::Entry* entry, Measurement* measurement) {
  const Problem& problem = entry->problem;
  Runnable runnable;
  runnable.stage.lane_workspace_bytes = {prepared->workspace_bytes()};
  runnable.stage.steps = {{ToString(problem.convolution), 0, problem.convolution.result_elements(),
                           problem.result_bytes, false, prepared}};
  runnable.stage.lane_groups = {StreamGroupOptions()};
  Bench bench(device);
  TF_INTEROP_RETURN_IF_ERROR(
      bench.SetUp({&problem}, options, options.warmup_runs + options.repetitions));
  TF_INTEROP_RETURN_IF_ERROR(bench.AllocateWorkspaces({&runnable}));

  Bytes result(problem.result_bytes), again(problem.result_bytes);
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(runnable, &result));
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(runnable, &again));
  measurement->is_deterministic = result == again;
  measurement->relative_error = entry->Check(result, options.reference_limit_multiply_adds);

  std::vector<TimeFigure> figures;
  TF_INTEROP_RETURN_IF_ERROR(TimeByTurns(&bench, {&runnable}, options, &figures));
  measurement->time = figures[0];
  measurement->algorithm = prepared->algorithm();
  measurement->reduces_precision = prepared->reduces_precision();
  measurement->workspace_bytes = prepared->workspace_bytes();
  measurement->copies = bench.copies();
  if (!options.trace_kernels) return Status::Ok();
  Status traced;
  TF_INTEROP_RETURN_IF_ERROR(bench.TraceRun(runnable, &measurement->kernels, &traced));
  measurement->trace_error = traced.message();
  return Status::Ok();
}

// The same convolutions, all on one lane.
std::vector<StageStep> OnOneLane(const std::vector<StageStep>& steps) {
  std::vector<StageStep> changed = steps;
  for (StageStep& step : changed) step.lane = 0;
  return changed;
}

// The same prepared steps, all on one lane.
Status PrepareSameSequence(Backend* backend, const std::vector<StageStep>& steps,
                           size_t workspace_limit_bytes, const PreparedStage& stage,
                           PreparedStage* sequence) {
  if (!stage.merged.empty()) {
    return PrepareStage(backend, OnOneLane(steps), workspace_limit_bytes, sequence);
  }
  *sequence = stage;
  for (PreparedStep& step : sequence->steps) step.lane = 0;
  sequence->lane_groups = {StreamGroupOptions()};
  sequence->lane_workspace_bytes = {
      *std::max_element(stage.lane_workspace_bytes.begin(), stage.lane_workspace_bytes.end())};
  return Status::Ok();
}

// The same convolutions with `algorithms`, all on one lane.
std::vector<StageStep> WithAlgorithms(const std::vector<StageStep>& steps,
                                      const std::vector<std::string>& algorithms) {
  std::vector<StageStep> changed = OnOneLane(steps);
  for (size_t i = 0; i < changed.size(); ++i) changed[i].algorithm = algorithms[i];
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

bool IsMerged(const std::vector<LaneOptions>& lanes, int lane) {
  return lane >= 0 && static_cast<size_t>(lane) < lanes.size() && lanes[lane].merged;
}

// Ok, or why the steps of a merged lane cannot run as one.
Status CheckMerge(Backend* backend, const std::vector<StageStep>& steps, int lane,
                  size_t workspace_limit_bytes) {
  std::vector<Convolution> parts;
  std::vector<std::string> algorithms;
  std::string names;
  for (const StageStep& step : steps) {
    if (step.lane != lane) continue;
    parts.push_back(step.convolution);
    algorithms.push_back(step.algorithm);
    names += (names.empty() ? "'" : ", '") + step.name + "'";
  }
  PreparedMerge merge;
  const Status status = AsRefusal(
      algorithms.front(), PrepareMerge(backend, parts, algorithms, workspace_limit_bytes, &merge));
  if (status.ok()) return status;
  return Status(status.code(), "Convolutions " + names + " merged: " + status.message());
}

// As PrepareStage, but a pinned algorithm that cannot be had, or a lane that cannot be merged, is a
// failure, of its own kind.
Status PrepareAsPinned(Backend* backend, const std::vector<StageStep>& steps,
                       const std::vector<LaneOptions>& lanes, size_t workspace_limit_bytes,
                       PreparedStage* prepared) {
  for (const StageStep& step : steps) {
    if (step.algorithm.empty() || IsMerged(lanes, step.lane)) continue;
    std::shared_ptr<const PreparedConvolution> convolution;
    const Status status = AsRefusal(
        step.algorithm,
        backend->Prepare(step.convolution, step.algorithm, workspace_limit_bytes, &convolution));
    if (status.ok()) continue;
    return Status(status.code(), "Convolution '" + step.name + "' with algorithm " +
                                     step.algorithm + ": " + status.message());
  }
  TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend, steps, lanes, workspace_limit_bytes, prepared));
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    if (!lanes[lane].merged) continue;
    TF_INTEROP_RETURN_IF_ERROR(
        CheckMerge(backend, steps, static_cast<int>(lane), workspace_limit_bytes));
  }
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
  sm_counts->clear();
  std::vector<std::unique_ptr<StreamGroup>> groups;
  Status status;
  for (const StreamGroupOptions& options : stage.lane_groups) {
    std::unique_ptr<StreamGroup> group;
    status = backend->Acquire(options, &group);
    if (!status.ok()) break;
    if (!options.partition.empty()) sm_counts->push_back(group->sm_count());
    groups.push_back(std::move(group));
  }
  // The backend keeps them for the runs.
  for (std::unique_ptr<StreamGroup>& group : groups) backend->Release(std::move(group));
  return status;
}

Status CheckRequest(const StageRequest& request) {
  const size_t steps = request.steps.size();
  if (steps == 0) return InvalidArgument("Expected a stage with a convolution, got none.");
  for (const StageStep& step : request.steps) {
    TF_INTEROP_RETURN_IF_ERROR(CheckHasWork(step.convolution));
  }
  const size_t algorithms = request.sequential_algorithms.size();
  if (algorithms == 0 || algorithms == steps) return Status::Ok();
  return InvalidArgument("Expected an algorithm of the sequence for none or all of " +
                         std::to_string(steps) + " convolutions, got " +
                         std::to_string(algorithms) + ".");
}

// The operands of all steps; those of a merged lane share the image of its first.
std::vector<Problem> MakeProblems(const StageRequest& request, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Problem> problems;
  std::map<int, size_t> first_of_lane;
  for (size_t i = 0; i < request.steps.size(); ++i) {
    const StageStep& step = request.steps[i];
    Problem problem = MakeProblem(step.convolution, &random);
    const size_t first = first_of_lane.emplace(step.lane, i).first->second;
    if (IsMerged(request.lanes, step.lane) && first != i) {
      problem.image_of = first;
      problem.inputs[0].clear();
    }
    problems.push_back(std::move(problem));
  }
  return problems;
}

// Measures concurrent, same_sequential and sequential of a request that has been prepared.
Status TimeStage(MeasuringDevice* device, const StageRequest& request,
                 const MeasureOptions& options, Runnable* concurrent, Runnable* same_sequential,
                 Runnable* sequential, StageMeasurement* measurement) {
  std::vector<Runnable*> ways = {concurrent, same_sequential};
  // Where both sequences are the same, one figure serves for both.
  const bool has_others =
      measurement->sequential_algorithms != AlgorithmsOf(same_sequential->stage);
  if (has_others) ways.push_back(sequential);

  const std::vector<Problem> problems = MakeProblems(request, options.seed);
  std::vector<const Problem*> pointers;
  for (const Problem& problem : problems) pointers.push_back(&problem);
  Bench bench(device);
  const int64_t runs = options.warmup_runs + options.repetitions;
  TF_INTEROP_RETURN_IF_ERROR(
      bench.SetUp(pointers, options, static_cast<int64_t>(ways.size()) * runs));
  TF_INTEROP_RETURN_IF_ERROR(bench.AllocateWorkspaces(ways));
  std::vector<TimeFigure> figures;
  TF_INTEROP_RETURN_IF_ERROR(TimeByTurns(&bench, {ways.begin(), ways.end()}, options, &figures));
  measurement->concurrent = figures[0];
  measurement->same_sequential = figures[1];
  measurement->sequential = has_others ? figures[2] : figures[1];
  measurement->copies = bench.copies();
  return Status::Ok();
}

}  // namespace

Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          ProblemCache* cache, Measurement* measurement) {
  return Guarded([&]() -> Status {
    *measurement = Measurement();
    std::shared_ptr<const PreparedConvolution> prepared;
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareAlone(device->backend(), convolution, algorithm, options, &prepared));
    return MeasurePrepared(device, options, prepared, &cache->Get(convolution, options.seed),
                           measurement);
  });
}

Status ResolveAlgorithm(MeasuringDevice* device, const Convolution& convolution,
                        const std::string& algorithm, const MeasureOptions& options,
                        ResolvedAlgorithm* resolved) {
  return Guarded([&]() -> Status {
    std::shared_ptr<const PreparedConvolution> prepared;
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareAlone(device->backend(), convolution, algorithm, options, &prepared));
    *resolved = {prepared->algorithm(), prepared->reduces_precision()};
    return Status::Ok();
  });
}

Status MeasureStage(MeasuringDevice* device, const StageRequest& request,
                    const MeasureOptions& options, StageMeasurement* measurement) {
  return Guarded([&]() -> Status {
    *measurement = StageMeasurement();
    TF_INTEROP_RETURN_IF_ERROR(CheckOptions(options));
    TF_INTEROP_RETURN_IF_ERROR(CheckRequest(request));
    Backend* const backend = device->backend();
    backend->set_allow_tf32(options.allow_tf32);
    Runnable concurrent, same_sequential, sequential;
    TF_INTEROP_RETURN_IF_ERROR(PrepareAsPinned(backend, request.steps, request.lanes,
                                               options.workspace_limit_bytes, &concurrent.stage));
    TF_INTEROP_RETURN_IF_ERROR(PrepareSameSequence(backend, request.steps,
                                                   options.workspace_limit_bytes, concurrent.stage,
                                                   &same_sequential.stage));
    measurement->algorithms = AlgorithmsOf(concurrent.stage);
    measurement->sequential_algorithms = AlgorithmsOf(same_sequential.stage);
    if (!request.sequential_algorithms.empty()) {
      TF_INTEROP_RETURN_IF_ERROR(
          PrepareAsPinned(backend, WithAlgorithms(request.steps, request.sequential_algorithms), {},
                          options.workspace_limit_bytes, &sequential.stage));
      measurement->sequential_algorithms = AlgorithmsOf(sequential.stage);
    }
    const std::vector<size_t>& lanes = concurrent.stage.lane_workspace_bytes;
    measurement->workspace_bytes = std::accumulate(lanes.begin(), lanes.end(), size_t{0});
    TF_INTEROP_RETURN_IF_ERROR(CheckGroups(backend, concurrent.stage, &measurement->sm_counts));
    return TimeStage(device, request, options, &concurrent, &same_sequential, &sequential,
                     measurement);
  });
}

}  // namespace tf_interop

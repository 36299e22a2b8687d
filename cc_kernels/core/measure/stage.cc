#include "cc_kernels/core/measure/stage.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "cc_kernels/core/measure/bench.h"
#include "cc_kernels/core/measure/problem.h"
#include "cc_kernels/core/merged_convolution.h"
#include "cc_kernels/core/stage_runner.h"

namespace tf_interop {
namespace {

// The same prepared steps, all on one lane.
Status PrepareSameSequence(Backend* backend, const Stage& stage, const PrepareOptions& options,
                           const PreparedStage& prepared, PreparedStage* sequence) {
  if (!prepared.merged.empty()) {
    return PrepareStage(backend, InSequence(stage), options, sequence);
  }
  *sequence = PreparedInSequence(prepared);
  return Status::Ok();
}

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

// Ok, or why the steps of a merged lane cannot run as one.
Status CheckMerge(Backend* backend, const Stage& stage, const Lane& lane,
                  const PrepareOptions& options) {
  std::vector<Convolution> parts;
  std::vector<std::string> algorithms;
  std::string names;
  for (const size_t i : lane.steps) {
    const Step& step = stage.steps[i];
    parts.push_back(step.convolution);
    algorithms.push_back(step.algorithm);
    names += (names.empty() ? "'" : ", '") + step.name + "'";
  }
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
    for (const size_t i : lane.steps) {
      const Step& step = stage.steps[i];
      if (step.algorithm.empty() || lane.merged) continue;
      std::shared_ptr<const PreparedConvolution> convolution;
      const Status status =
          AsRefusal(step.algorithm,
                    backend->Prepare(step.convolution, step.algorithm, options, &convolution));
      if (status.ok()) continue;
      return Status(status.code(), "Convolution '" + step.name + "' with algorithm " +
                                       step.algorithm + ": " + status.message());
    }
  }
  TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend, stage, options, prepared));
  for (const Lane& lane : stage.lanes) {
    if (lane.merged) TF_INTEROP_RETURN_IF_ERROR(CheckMerge(backend, stage, lane, options));
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

// The operands of all steps; those of a merged lane share the image of its first.
std::vector<MeasuredProblem> MakeProblems(const StageRequest& request, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<MeasuredProblem> problems;
  for (const Step& step : request.stage.steps) {
    problems.push_back(MakeProblem(step.convolution, &random));
  }
  for (const Lane& lane : request.stage.lanes) {
    if (!lane.merged) continue;
    for (const size_t i : lane.steps) {
      if (i == lane.steps.front()) continue;
      problems[i].image_of = lane.steps.front();
      problems[i].inputs[0].clear();
    }
  }
  return problems;
}

// Measures concurrent, same_sequential and sequential of a request that has been prepared.
Status TimeStage(MeasuringDevice* device, const StageRequest& request,
                 const MeasureOptions& options, Runnable* concurrent, Runnable* same_sequential,
                 Runnable* sequential, StageMeasurement* measurement) {
  std::vector<Runnable*> ways = {concurrent, same_sequential};
  // Where both sequences are the same, one time serves for both.
  const bool has_others =
      measurement->sequential_algorithms != AlgorithmsOf(same_sequential->stage);
  if (has_others) ways.push_back(sequential);

  const std::vector<MeasuredProblem> problems = MakeProblems(request, options.seed);
  std::vector<const MeasuredProblem*> pointers;
  for (const MeasuredProblem& problem : problems) pointers.push_back(&problem);
  Bench bench(device);
  const int64_t runs = options.warmup_runs + options.repetitions;
  TF_INTEROP_RETURN_IF_ERROR(
      bench.SetUp(pointers, options, static_cast<int64_t>(ways.size()) * runs));
  TF_INTEROP_RETURN_IF_ERROR(bench.AllocateWorkspaces(ways));
  std::vector<TfiTime> times;
  TF_INTEROP_RETURN_IF_ERROR(TimeByTurns(&bench, {ways.begin(), ways.end()}, options, &times));
  measurement->concurrent = times[0];
  measurement->same_sequential = times[1];
  measurement->sequential = has_others ? times[2] : times[1];
  return Status::Ok();
}

}  // namespace

Status MeasureStage(MeasuringDevice* device, const StageRequest& request,
                    const MeasureOptions& options, StageMeasurement* measurement) {
  *measurement = StageMeasurement();
  TF_INTEROP_RETURN_IF_ERROR(Validate(options));
  TF_INTEROP_RETURN_IF_ERROR(CheckRequest(request));
  Backend* const backend = device->backend();
  const PrepareOptions prepare = options.prepare_options();
  Runnable concurrent, same_sequential, sequential;
  TF_INTEROP_RETURN_IF_ERROR(PrepareAsPinned(backend, request.stage, prepare, &concurrent.stage));
  TF_INTEROP_RETURN_IF_ERROR(PrepareSameSequence(backend, request.stage, prepare, concurrent.stage,
                                                 &same_sequential.stage));
  measurement->algorithms = AlgorithmsOf(concurrent.stage);
  measurement->sequential_algorithms = AlgorithmsOf(same_sequential.stage);
  if (!request.sequential_algorithms.empty()) {
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareAsPinned(backend, WithAlgorithms(request.stage, request.sequential_algorithms),
                        prepare, &sequential.stage));
    measurement->sequential_algorithms = AlgorithmsOf(sequential.stage);
  }
  const std::vector<size_t>& lanes = concurrent.stage.lane_workspace_bytes;
  measurement->workspace_bytes =
      static_cast<int64_t>(std::accumulate(lanes.begin(), lanes.end(), size_t{0}));
  TF_INTEROP_RETURN_IF_ERROR(CheckGroups(backend, concurrent.stage, &measurement->sm_counts));
  return TimeStage(device, request, options, &concurrent, &same_sequential, &sequential,
                   measurement);
}

}  // namespace tf_interop

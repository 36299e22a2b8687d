#include "cc_kernels/core/stage_runner.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/trace.h"

namespace tf_interop {
namespace {

Status AtStep(const std::string& name, const std::string& algorithm, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(), "Convolution '" + name + "'" +
                                   (algorithm.empty() ? "" : " with algorithm " + algorithm) +
                                   ": " + status.message());
}

Status ValidateSteps(const std::vector<StageStep>& steps) {
  for (const StageStep& step : steps) {
    TF_INTEROP_RETURN_IF_ERROR(AtStep(step.name, "", Validate(step.convolution)));
  }
  return Status::Ok();
}

// Prepares a step whose convolution is valid.
Status PrepareStep(Backend* backend, const StageStep& step, const std::string& algorithm,
                   size_t workspace_limit_bytes, std::vector<std::string>* fallbacks,
                   PreparedStep* prepared) {
  prepared->name = step.name;
  prepared->result_elements = step.convolution.result_elements();
  prepared->result_bytes = prepared->result_elements * SizeOf(step.convolution.dtype);
  if (prepared->result_elements == 0) return Status::Ok();
  if (step.convolution.reads_nothing()) {
    prepared->result_is_zero = true;
    return Status::Ok();
  }
  if (!algorithm.empty()) {
    const Status pinned = backend->Prepare(step.convolution, algorithm, workspace_limit_bytes,
                                           &prepared->convolution);
    if (pinned.ok()) return Status::Ok();
    fallbacks->push_back(AtStep(step.name, algorithm, pinned).message());
  }
  const Status chosen =
      backend->Prepare(step.convolution, "", workspace_limit_bytes, &prepared->convolution);
  if (chosen.ok() || workspace_limit_bytes == 0) return AtStep(step.name, "", chosen);
  // TensorFlow's own convolutions run with a limit that is below what transposing takes, too.
  const Status least = backend->Prepare(step.convolution, "", 0, &prepared->convolution);
  if (!least.ok()) return AtStep(step.name, "", chosen);
  fallbacks->push_back(AtStep(step.name, "", chosen).message());
  return Status::Ok();
}

// Why the lane that begins with this convolution is not merged.
std::string OfLane(const std::string& first, const std::string& reason) {
  return "that of convolution '" + first + "': " + reason;
}

// Merges the steps of `lane` that have something to compute, where there are several.
void MergeLane(Backend* backend, const std::vector<StageStep>& steps, int lane,
               size_t workspace_limit_bytes, PreparedStage* prepared) {
  MergedSteps merged;
  std::vector<Convolution> parts;
  std::vector<std::string> algorithms;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Convolution& c = steps[i].convolution;
    if (steps[i].lane != lane || c.result_elements() == 0 || c.reads_nothing()) continue;
    merged.steps.push_back(i);
    parts.push_back(c);
    algorithms.push_back(steps[i].algorithm);
  }
  if (parts.size() < 2) return;
  const Status status =
      PrepareMerge(backend, parts, algorithms, workspace_limit_bytes, &merged.merge);
  if (status.ok()) {
    prepared->merged.push_back(std::move(merged));
  } else {
    prepared->unmerged.push_back(OfLane(steps[merged.steps[0]].name, status.message()));
  }
}

// For each step the entry of `stage->merged` that it is part of, or null.
std::vector<MergedSteps*> MergedOfSteps(PreparedStage* stage) {
  std::vector<MergedSteps*> merged_of(stage->steps.size(), nullptr);
  for (MergedSteps& merged : stage->merged) {
    for (const size_t step : merged.steps) merged_of[step] = &merged;
  }
  return merged_of;
}

void GrowLaneWorkspace(const PreparedStep& step, size_t* bytes) {
  if (step.convolution) *bytes = std::max(*bytes, step.convolution->workspace_bytes());
}

bool AsksForOptions(const std::vector<StreamGroupOptions>& lanes) {
  return std::any_of(lanes.begin(), lanes.end(), [](const StreamGroupOptions& options) {
    return !(options == StreamGroupOptions());
  });
}

// The stream groups of one call, returned to the backend when the call ends.
class LeasedStreamGroups {
 public:
  explicit LeasedStreamGroups(Backend* backend) : backend_(backend) {}
  ~LeasedStreamGroups() { Release(); }
  LeasedStreamGroups(const LeasedStreamGroups&) = delete;
  LeasedStreamGroups& operator=(const LeasedStreamGroups&) = delete;

  // One for each lane, all as asked for or all without options; none where that fails.
  Status Acquire(const std::vector<StreamGroupOptions>& lanes) {
    Status status = AcquireAsAsked(lanes);
    if (!status.ok() && AsksForOptions(lanes)) {
      CountRefusedLaneOptions(status.message());
      status = AcquireAsAsked(std::vector<StreamGroupOptions>(lanes.size()));
    }
    return status;
  }
  StreamGroup* operator[](size_t lane) const { return groups_[lane].get(); }
  size_t size() const { return groups_.size(); }

 private:
  Status AcquireAsAsked(const std::vector<StreamGroupOptions>& lanes) {
    groups_.reserve(lanes.size());
    for (const StreamGroupOptions& options : lanes) {
      std::unique_ptr<StreamGroup> group;
      const Status status = backend_->Acquire(options, &group);
      if (!status.ok()) {
        Release();
        return status;
      }
      groups_.push_back(std::move(group));
    }
    return Status::Ok();
  }

  void Release() {
    for (auto& group : groups_) backend_->Release(std::move(group));
    groups_.clear();
  }

  Backend* const backend_;
  std::vector<std::unique_ptr<StreamGroup>> groups_;
};

// What is launched in one go: a step, or several that are merged.
struct Launch {
  size_t step = 0;                      // the first of those that are merged
  const MergedSteps* merged = nullptr;  // null for a step by itself
  const void* joined_filter = nullptr;  // see RunStage
};

// All launches of a stage, in the order of the steps.
std::vector<Launch> LaunchesOf(const PreparedStage& stage,
                               const std::vector<ConvolutionBuffers>& buffers,
                               const std::vector<const void*>& joined_filters) {
  std::vector<Launch> launches;
  std::vector<bool> is_merged(stage.steps.size(), false);
  for (size_t i = 0; i < stage.merged.size(); ++i) {
    const MergedSteps& merged = stage.merged[i];
    const size_t first = merged.steps.front();
    if (!HaveOneImage(BuffersOf(merged, buffers))) {
      CountFallback(kUnmergedLane,
                    OfLane(stage.steps[first].name, "Its convolutions read different images."));
      for (const std::string& reason : merged.fallbacks_unmerged) {
        CountFallback(kRefusedAlgorithm, reason);
      }
      continue;
    }
    for (const size_t step : merged.steps) is_merged[step] = true;
    launches.push_back({first, &merged, joined_filters.empty() ? nullptr : joined_filters[i]});
  }
  for (size_t step = 0; step < stage.steps.size(); ++step) {
    if (!is_merged[step]) launches.push_back({step, nullptr, nullptr});
  }
  std::sort(launches.begin(), launches.end(),
            [](const Launch& a, const Launch& b) { return a.step < b.step; });
  return launches;
}

// The launches of each lane, in order.
std::vector<std::vector<Launch>> ByLane(const PreparedStage& stage,
                                        const std::vector<Launch>& launches) {
  std::vector<std::vector<Launch>> lanes(stage.lane_workspace_bytes.size());
  for (const Launch& launch : launches) lanes[stage.steps[launch.step].lane].push_back(launch);
  return lanes;
}

Status LaunchStep(Backend* backend, const PreparedStep& step, const ConvolutionBuffers& buffers,
                  void* workspace, StreamGroup* group, Stream stream) {
  if (step.result_elements == 0) return Status::Ok();
  if (step.result_is_zero) {
    return AtStep(step.name, "", backend->FillZero(buffers.result, step.result_bytes, stream));
  }
  return AtStep(step.name, step.convolution->algorithm(),
                backend->Launch(*step.convolution, buffers, workspace, group, stream));
}

TraceLabel LabelOf(const PreparedStage& stage, const Launch& launch) {
  const PreparedStep& step = stage.steps[launch.step];
  TraceLabel label{step.lane, step.name, ""};
  if (launch.merged == nullptr) {
    if (step.convolution) label.algorithm = step.convolution->algorithm();
    return label;
  }
  label.algorithm = launch.merged->merge.convolution->algorithm();
  label.convolutions.clear();
  for (const size_t part : launch.merged->steps) {
    label.convolutions += (label.convolutions.empty() ? "" : " + ") + stage.steps[part].name;
  }
  return label;
}

Status Enqueue(Backend* backend, const PreparedStage& stage, const Launch& launch,
               const std::vector<ConvolutionBuffers>& buffers, void* workspace, StreamGroup* group,
               Stream stream) {
  const TraceScope scope([&] { return LabelOf(stage, launch); });
  const PreparedStep& step = stage.steps[launch.step];
  if (launch.merged == nullptr) {
    return LaunchStep(backend, step, buffers[launch.step], workspace, group, stream);
  }
  const PreparedMerge& merge = launch.merged->merge;
  return AtStep(step.name, merge.convolution->algorithm() + " and those merged with it",
                LaunchMerge(backend, merge, BuffersOf(*launch.merged, buffers),
                            launch.joined_filter, workspace, group, stream));
}

// Makes the streams of all lanes wait for what is on the caller's stream now. `forked` counts the
// lanes that do.
Status Fork(Backend* backend, const LeasedStreamGroups& groups, Stream caller, size_t* forked) {
  Event* const fork = groups[0]->fork_event();
  TF_INTEROP_RETURN_IF_ERROR(backend->Record(fork, caller));
  for (*forked = 0; *forked < groups.size(); ++*forked) {
    TF_INTEROP_RETURN_IF_ERROR(backend->Wait(groups[*forked]->stream(), fork));
  }
  return Status::Ok();
}

Status LaunchRoundRobin(Backend* backend, const PreparedStage& stage,
                        const std::vector<Launch>& launches,
                        const std::vector<ConvolutionBuffers>& buffers,
                        const std::vector<void*>& lane_workspaces,
                        const LeasedStreamGroups& groups) {
  const std::vector<std::vector<Launch>> lanes = ByLane(stage, launches);
  size_t longest = 0;
  for (const auto& lane : lanes) longest = std::max(longest, lane.size());
  for (size_t position = 0; position < longest; ++position) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      if (position >= lanes[lane].size()) continue;
      TF_INTEROP_RETURN_IF_ERROR(Enqueue(backend, stage, lanes[lane][position], buffers,
                                         lane_workspaces[lane], groups[lane],
                                         groups[lane]->stream()));
    }
  }
  return Status::Ok();
}

// Makes the caller's stream wait for the first `forked` lanes. Goes on after an error: a lane that
// is not joined would run on while the caller reuses its memory.
Status Join(Backend* backend, const LeasedStreamGroups& groups, Stream caller, size_t forked) {
  Status status;
  for (size_t lane = 0; lane < forked; ++lane) {
    const Status recorded = backend->Record(groups[lane]->join_event(), groups[lane]->stream());
    status.Update(recorded.ok() ? backend->Wait(caller, groups[lane]->join_event()) : recorded);
  }
  return status;
}

// Forks and launches. What is thrown on the way becomes an error, so that the lanes that have
// begun are joined after it too.
Status LaunchLanes(Backend* backend, const PreparedStage& stage,
                   const std::vector<Launch>& launches,
                   const std::vector<ConvolutionBuffers>& buffers,
                   const std::vector<void*>& lane_workspaces, const LeasedStreamGroups& groups,
                   Stream caller, size_t* forked) {
  try {
    TF_INTEROP_RETURN_IF_ERROR(Fork(backend, groups, caller, forked));
    return LaunchRoundRobin(backend, stage, launches, buffers, lane_workspaces, groups);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("Out of host memory while a stage was launched.");
  } catch (const std::exception& error) {
    return Internal(std::string("Launching a stage failed: ") + error.what());
  }
}

Status RunOnCallerStream(Backend* backend, const PreparedStage& stage,
                         const std::vector<Launch>& launches,
                         const std::vector<ConvolutionBuffers>& buffers,
                         const std::vector<void*>& lane_workspaces, Stream caller) {
  LeasedStreamGroups groups(backend);
  TF_INTEROP_RETURN_IF_ERROR(groups.Acquire({StreamGroupOptions()}));
  for (const Launch& launch : launches) {
    void* const workspace = lane_workspaces[stage.steps[launch.step].lane];
    TF_INTEROP_RETURN_IF_ERROR(
        Enqueue(backend, stage, launch, buffers, workspace, groups[0], caller));
  }
  return Status::Ok();
}

// Checks that lanes are numbered in the order of the steps, and counts them.
Status CountLanes(const std::vector<StageStep>& steps, int* lane_count) {
  *lane_count = 0;
  for (const StageStep& step : steps) {
    if (step.lane < 0 || step.lane > *lane_count) {
      return InvalidArgument("Expected lanes numbered 0, 1, 2, … in the order of the steps, got " +
                             std::to_string(step.lane) + " at convolution '" + step.name +
                             "' behind " + std::to_string(*lane_count) + " lanes.");
    }
    *lane_count = std::max(*lane_count, step.lane + 1);
  }
  return Status::Ok();
}

Status CheckLaneOptions(const std::vector<LaneOptions>& lanes, int lane_count) {
  if (!lanes.empty() && lanes.size() != static_cast<size_t>(lane_count)) {
    return InvalidArgument("Expected options for none or all of " + std::to_string(lane_count) +
                           " lanes, got " + std::to_string(lanes.size()) + ".");
  }
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    if (lanes[lane].sm_count >= 0) continue;
    return InvalidArgument("Expected an SM count of at least 0, got " +
                           std::to_string(lanes[lane].sm_count) + " for lane " +
                           std::to_string(lane) + ".");
  }
  return Status::Ok();
}

// What the first `count` lanes, which have streams, ask of their stream groups.
std::vector<StreamGroupOptions> GroupOptionsOf(const std::vector<LaneOptions>& lanes,
                                               size_t count) {
  std::vector<StreamGroupOptions> groups(count);
  if (lanes.empty()) return groups;
  std::vector<int> sm_counts;
  for (size_t lane = 0; lane < count; ++lane) sm_counts.push_back(lanes[lane].sm_count);
  const bool has_partition =
      std::any_of(sm_counts.begin(), sm_counts.end(), [](int sm_count) { return sm_count > 0; });
  for (size_t lane = 0; lane < count; ++lane) {
    groups[lane].priority = lanes[lane].priority;
    if (!has_partition) continue;
    groups[lane].partition = sm_counts;
    groups[lane].partition_index = static_cast<int>(lane);
  }
  return groups;
}

}  // namespace

std::vector<ConvolutionBuffers> BuffersOf(const MergedSteps& merged,
                                          const std::vector<ConvolutionBuffers>& buffers) {
  std::vector<ConvolutionBuffers> parts;
  for (const size_t step : merged.steps) parts.push_back(buffers[step]);
  return parts;
}

Status PrepareStage(Backend* backend, const std::vector<StageStep>& steps,
                    const std::vector<LaneOptions>& lanes, size_t workspace_limit_bytes,
                    PreparedStage* prepared) {
  *prepared = PreparedStage();
  int lane_count = 0;
  TF_INTEROP_RETURN_IF_ERROR(CountLanes(steps, &lane_count));
  TF_INTEROP_RETURN_IF_ERROR(CheckLaneOptions(lanes, lane_count));
  TF_INTEROP_RETURN_IF_ERROR(ValidateSteps(steps));
  prepared->steps.resize(steps.size());
  prepared->lane_workspace_bytes.resize(std::min(lane_count, kMaxLanes));
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    if (!lanes[lane].merged) continue;
    MergeLane(backend, steps, static_cast<int>(lane), workspace_limit_bytes, prepared);
  }
  const std::vector<MergedSteps*> merged_of = MergedOfSteps(prepared);
  for (size_t i = 0; i < steps.size(); ++i) {
    MergedSteps* const merged = merged_of[i];
    size_t limit_bytes = workspace_limit_bytes;
    if (merged != nullptr) limit_bytes = merged->merge.workspace_bytes();
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareStep(backend, steps[i], steps[i].algorithm, limit_bytes,
                    merged != nullptr ? &merged->fallbacks_unmerged : &prepared->fallbacks,
                    &prepared->steps[i]));
    const int lane = steps[i].lane % kMaxLanes;
    prepared->steps[i].lane = lane;
    GrowLaneWorkspace(prepared->steps[i], &prepared->lane_workspace_bytes[lane]);
    if (merged != nullptr) {
      prepared->lane_workspace_bytes[lane] =
          std::max(prepared->lane_workspace_bytes[lane], merged->merge.workspace_bytes());
    }
  }
  prepared->lane_groups = GroupOptionsOf(lanes, prepared->lane_workspace_bytes.size());
  return Status::Ok();
}

Status PrepareSequentialStage(Backend* backend, const std::vector<StageStep>& steps,
                              PreparedStage* prepared) {
  *prepared = PreparedStage();
  TF_INTEROP_RETURN_IF_ERROR(ValidateSteps(steps));
  prepared->steps.resize(steps.size());
  prepared->lane_workspace_bytes = {0};
  prepared->lane_groups = {StreamGroupOptions()};
  for (size_t i = 0; i < steps.size(); ++i) {
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareStep(backend, steps[i], "", 0, &prepared->fallbacks, &prepared->steps[i]));
    GrowLaneWorkspace(prepared->steps[i], &prepared->lane_workspace_bytes[0]);
  }
  return Status::Ok();
}

Status RunStage(Backend* backend, const PreparedStage& stage,
                const std::vector<ConvolutionBuffers>& buffers,
                const std::vector<void*>& lane_workspaces,
                const std::vector<const void*>& joined_filters, Stream caller, bool* is_joined) {
  // Nothing is enqueued yet, and what is on the caller's own stream needs no join.
  if (is_joined != nullptr) *is_joined = true;
  const size_t lanes = stage.lane_workspace_bytes.size();
  if (buffers.size() != stage.steps.size() || lane_workspaces.size() != lanes) {
    return InvalidArgument("Expected buffers for " + std::to_string(stage.steps.size()) +
                           " steps and workspaces for " + std::to_string(lanes) + " lanes, got " +
                           std::to_string(buffers.size()) + " and " +
                           std::to_string(lane_workspaces.size()) + ".");
  }
  if (stage.lane_groups.size() != lanes) {
    return InvalidArgument("Expected what each of " + std::to_string(lanes) +
                           " lanes asks of its stream group, got " +
                           std::to_string(stage.lane_groups.size()) + " of them.");
  }
  if (!joined_filters.empty() && joined_filters.size() != stage.merged.size()) {
    return InvalidArgument("Expected a joined filter or null for none or all of " +
                           std::to_string(stage.merged.size()) + " merged lanes, got " +
                           std::to_string(joined_filters.size()) + " of them.");
  }
  if (lanes == 0) return Status::Ok();
  const std::vector<Launch> launches = LaunchesOf(stage, buffers, joined_filters);
  if (lanes == 1) {
    return RunOnCallerStream(backend, stage, launches, buffers, lane_workspaces, caller);
  }

  LeasedStreamGroups groups(backend);
  const Status acquired = groups.Acquire(stage.lane_groups);
  if (!acquired.ok()) {
    CountFallback("no stream groups for the lanes of a stage, which ran in sequence",
                  acquired.message());
    return RunOnCallerStream(backend, stage, launches, buffers, lane_workspaces, caller);
  }
  size_t forked = 0;
  Status status =
      LaunchLanes(backend, stage, launches, buffers, lane_workspaces, groups, caller, &forked);
  const Status joined = Join(backend, groups, caller, forked);
  if (is_joined != nullptr) *is_joined = joined.ok();
  status.Update(joined);
  return status;
}

}  // namespace tf_interop

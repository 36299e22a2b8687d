#include "cc_kernels/core/stage_runner.h"

#include <algorithm>
#include <utility>

#include "cc_kernels/core/counters.h"

namespace tf_interop {
namespace {

Status AtStep(const std::string& name, const std::string& algorithm, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(), "Convolution '" + name + "'" +
                                   (algorithm.empty() ? "" : " with algorithm " + algorithm) +
                                   ": " + status.message());
}

Status PrepareStep(Backend* backend, const StageStep& step, const std::string& algorithm,
                   size_t workspace_limit_bytes, std::vector<std::string>* fallbacks,
                   PreparedStep* prepared) {
  prepared->name = step.name;
  TF_INTEROP_RETURN_IF_ERROR(AtStep(step.name, "", Validate(step.convolution)));
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

// The steps of each lane, in order.
std::vector<std::vector<size_t>> StepsByLane(const PreparedStage& stage) {
  std::vector<std::vector<size_t>> lanes(stage.lane_workspace_bytes.size());
  for (size_t i = 0; i < stage.steps.size(); ++i) lanes[stage.steps[i].lane].push_back(i);
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
                        const std::vector<ConvolutionBuffers>& buffers,
                        const std::vector<void*>& lane_workspaces,
                        const LeasedStreamGroups& groups) {
  const std::vector<std::vector<size_t>> lanes = StepsByLane(stage);
  size_t longest = 0;
  for (const auto& lane : lanes) longest = std::max(longest, lane.size());
  for (size_t position = 0; position < longest; ++position) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      if (position >= lanes[lane].size()) continue;
      const size_t step = lanes[lane][position];
      TF_INTEROP_RETURN_IF_ERROR(LaunchStep(backend, stage.steps[step], buffers[step],
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

Status RunOnCallerStream(Backend* backend, const PreparedStage& stage,
                         const std::vector<ConvolutionBuffers>& buffers,
                         const std::vector<void*>& lane_workspaces, Stream caller) {
  LeasedStreamGroups groups(backend);
  TF_INTEROP_RETURN_IF_ERROR(groups.Acquire({StreamGroupOptions()}));
  for (size_t i = 0; i < stage.steps.size(); ++i) {
    void* const workspace = lane_workspaces[stage.steps[i].lane];
    TF_INTEROP_RETURN_IF_ERROR(
        LaunchStep(backend, stage.steps[i], buffers[i], workspace, groups[0], caller));
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

Status PrepareStage(Backend* backend, const std::vector<StageStep>& steps,
                    const std::vector<LaneOptions>& lanes, size_t workspace_limit_bytes,
                    PreparedStage* prepared) {
  *prepared = PreparedStage();
  prepared->steps.resize(steps.size());
  int lane_count = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const StageStep& step = steps[i];
    if (step.lane < 0 || step.lane > lane_count) {
      return InvalidArgument("Expected lanes numbered 0, 1, 2, … in the order of the steps, got " +
                             std::to_string(step.lane) + " at convolution '" + step.name +
                             "' behind " + std::to_string(lane_count) + " lanes.");
    }
    lane_count = std::max(lane_count, step.lane + 1);
    const int lane = step.lane % kMaxLanes;
    auto& workspaces = prepared->lane_workspace_bytes;
    workspaces.resize(std::min(lane_count, kMaxLanes));
    TF_INTEROP_RETURN_IF_ERROR(PrepareStep(backend, step, step.algorithm, workspace_limit_bytes,
                                           &prepared->fallbacks, &prepared->steps[i]));
    prepared->steps[i].lane = lane;
    GrowLaneWorkspace(prepared->steps[i], &workspaces[lane]);
  }
  TF_INTEROP_RETURN_IF_ERROR(CheckLaneOptions(lanes, lane_count));
  prepared->lane_groups = GroupOptionsOf(lanes, prepared->lane_workspace_bytes.size());
  return Status::Ok();
}

Status PrepareSequentialStage(Backend* backend, const std::vector<StageStep>& steps,
                              PreparedStage* prepared) {
  *prepared = PreparedStage();
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
                const std::vector<void*>& lane_workspaces, Stream caller, bool* is_joined) {
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
  if (lanes == 0) return Status::Ok();
  if (lanes == 1) return RunOnCallerStream(backend, stage, buffers, lane_workspaces, caller);

  LeasedStreamGroups groups(backend);
  const Status acquired = groups.Acquire(stage.lane_groups);
  if (!acquired.ok()) {
    CountFallback("no stream groups for the lanes of a stage, which ran in sequence",
                  acquired.message());
    return RunOnCallerStream(backend, stage, buffers, lane_workspaces, caller);
  }
  size_t forked = 0;
  Status status = Fork(backend, groups, caller, &forked);
  if (status.ok()) {
    status.Update(LaunchRoundRobin(backend, stage, buffers, lane_workspaces, groups));
  }
  const Status joined = Join(backend, groups, caller, forked);
  if (is_joined != nullptr) *is_joined = joined.ok();
  status.Update(joined);
  return status;
}

}  // namespace tf_interop

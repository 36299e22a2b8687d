#include "cc_kernels/core/stage_runner.h"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <new>
#include <utility>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/stage_replays.h"
#include "cc_kernels/core/timeline.h"

namespace tf_interop {
namespace {

// Adds the convolution to its error.
Status AtStep(const std::string& name, const std::string& algorithm, const Status& status) {
  return Status(status.code(), "Convolution '" + name + "'" +
                                   (algorithm.empty() ? "" : " with algorithm " + algorithm) +
                                   ": " + status.message());
}

// Prepares a step whose convolution is valid.
Status PrepareStep(Backend* backend, const Step& step, PrepareOptions options,
                   std::vector<Status>* fallbacks, PreparedStep* prepared) {
  const Convolution& c = step.convolution;
  if (!c.computes_something()) {
    prepared->zero_bytes = c.result_elements() * SizeOf(c.dtype);
    return Status::Ok();
  }
  if (!step.algorithm.empty()) {
    const Status pinned = backend->Prepare(c, step.algorithm, options, &prepared->convolution);
    if (pinned.ok()) return Status::Ok();
    fallbacks->push_back(AtStep(step.name, step.algorithm, pinned));
  }
  Status chosen = backend->Prepare(c, "", options, &prepared->convolution);
  if (chosen.ok()) return Status::Ok();
  chosen = AtStep(step.name, "", chosen);
  // TensorFlow's own convolutions run even if the limit is too small for transposing.
  if (options.workspace_limit_bytes == 0) return chosen;
  options.workspace_limit_bytes = 0;
  if (!backend->Prepare(c, "", options, &prepared->convolution).ok()) return chosen;
  fallbacks->push_back(chosen);
  return Status::Ok();
}

// Merges the steps of a lane that have something to compute, if there are several. Otherwise
// returns null.
MergedSteps* MergeLane(Backend* backend, const Stage& stage, const Lane& lane,
                       const PrepareOptions& options, PreparedStage* prepared) {
  if (!lane.merged) return nullptr;
  MergedSteps merged;
  std::vector<Convolution> parts;
  std::vector<std::string> algorithms;
  for (const size_t i : lane.steps) {
    const Step& step = stage.steps[i];
    if (!step.convolution.computes_something()) continue;
    merged.steps.push_back(i);
    parts.push_back(step.convolution);
    algorithms.push_back(step.algorithm);
  }
  if (parts.size() < std::min<size_t>(lane.steps.size(), 2)) return nullptr;
  const Status status = PrepareMerge(backend, parts, algorithms, options, &merged.merge);
  if (status.ok()) return &prepared->merged.emplace_back(std::move(merged));
  const std::string& first = stage.steps[merged.steps[0]].name;
  prepared->unmerged.emplace_back(status.code(),
                                  "the lane of convolution '" + first + "': " + status.message());
  return nullptr;
}

size_t WorkspaceBytesOf(const PreparedStep& step) {
  return step.convolution == nullptr ? 0 : step.convolution->workspace_bytes();
}

Status PrepareLane(Backend* backend, const Stage& stage, size_t number,
                   const PrepareOptions& options, PreparedStage* prepared) {
  const Lane& lane = stage.lanes[number];
  const MergedSteps* const merged = MergeLane(backend, stage, lane, options, prepared);
  size_t workspace_bytes = merged != nullptr ? merged->merge.workspace_bytes() : 0;
  for (const size_t i : lane.steps) {
    PreparedStep& step = prepared->steps[i];
    step.name = stage.steps[i].name;
    step.lane = static_cast<int>(number);
    if (merged != nullptr && stage.steps[i].convolution.computes_something()) continue;
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareStep(backend, stage.steps[i], options, &prepared->fallbacks, &step));
    workspace_bytes = std::max(workspace_bytes, WorkspaceBytesOf(step));
  }
  prepared->lane_workspace_bytes.push_back(workspace_bytes);
  return Status::Ok();
}

double WorkOf(const Stage& stage, const Lane& lane) {
  double work = 0;
  for (const size_t i : lane.steps) {
    const Convolution& c = stage.steps[i].convolution;
    if (c.computes_something()) work += c.multiply_adds();
  }
  return work;
}

using LanePriorities = std::vector<std::optional<int>>;

LanePriorities PrioritiesOf(const Stage& stage) {
  LanePriorities priorities;
  bool has_priorities = false;
  for (const Lane& lane : stage.lanes) {
    has_priorities = has_priorities || lane.priority != 0;
    priorities.emplace_back(lane.priority);
  }
  if (priorities.size() > 1 && has_priorities) return priorities;
  const auto longest = std::max_element(
      stage.lanes.begin(), stage.lanes.end(),
      [&](const Lane& a, const Lane& b) { return WorkOf(stage, a) < WorkOf(stage, b); });
  if (!priorities.empty()) priorities[longest - stage.lanes.begin()].reset();
  return priorities;
}

// Orders all launches round-robin over the lanes.
std::vector<StageLaunch> LaunchesOf(const PreparedStage& stage) {
  std::vector<size_t> merged_of(stage.steps.size(), StageLaunch::kNotMerged);
  for (size_t i = 0; i < stage.merged.size(); ++i) {
    merged_of[stage.merged[i].steps.front()] = i;
  }
  std::vector<std::vector<StageLaunch>> lanes(stage.lane_workspace_bytes.size());
  size_t longest = 0;
  for (size_t i = 0; i < stage.steps.size(); ++i) {
    const PreparedStep& step = stage.steps[i];
    const size_t merged = merged_of[i];
    const bool is_merged = merged != StageLaunch::kNotMerged;
    if (!is_merged && !step.convolution && step.zero_bytes == 0) continue;
    std::vector<StageLaunch>& lane = lanes[step.lane];
    lane.push_back({i, merged});
    longest = std::max(longest, lane.size());
  }
  std::vector<StageLaunch> launches;
  for (size_t position = 0; position < longest; ++position) {
    for (const std::vector<StageLaunch>& lane : lanes) {
      if (position < lane.size()) launches.push_back(lane[position]);
    }
  }
  return launches;
}

TraceLabel LabelOf(const PreparedStage& stage, const StageLaunch& launch) {
  const PreparedStep& step = stage.steps[launch.step];
  TraceLabel label{step.lane, step.name, ""};
  if (launch.merged == StageLaunch::kNotMerged) {
    if (step.convolution) label.algorithm = step.convolution->algorithm();
    return label;
  }
  const MergedSteps& merged = stage.merged[launch.merged];
  label.algorithm = merged.merge.convolution->algorithm();
  label.convolutions.clear();
  for (const size_t part : merged.steps) {
    label.convolutions += (label.convolutions.empty() ? "" : " + ") + stage.steps[part].name;
  }
  return label;
}

// The stream groups of one call. The destructor returns them to the backend.
class LeasedStreamGroups {
 public:
  explicit LeasedStreamGroups(Backend* backend) : backend_(backend) {}
  ~LeasedStreamGroups() { Release(); }
  LeasedStreamGroups(const LeasedStreamGroups&) = delete;
  LeasedStreamGroups& operator=(const LeasedStreamGroups&) = delete;

  // Null for the caller's lane.
  StreamGroup* operator[](size_t lane) const { return groups_[lane].get(); }

  // Gets one for each lane but the caller's, or none.
  Status Acquire(const LanePriorities& lanes) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      if (!lanes[lane].has_value()) continue;
      Status status = backend_->Acquire(*lanes[lane], &groups_[lane]);
      if (status.ok()) continue;
      Release();
      return status;
    }
    return Status::Ok();
  }

 private:
  void Release() {
    for (auto& group : groups_) {
      if (group != nullptr) backend_->Release(std::move(group));
    }
  }

  Backend* const backend_;
  std::array<std::unique_ptr<StreamGroup>, kMaxLanes> groups_;
};

// The call whose times a timeline records, or null.
const TimelineCall* CurrentCall(Backend* backend) {
  return backend->IsCaptured() ? nullptr : TimelineCall::Current();
}

// One call of RunStage.
class StageRun {
 public:
  StageRun(Backend* backend, const PreparedStage& stage, const StageBuffers& buffers, Stream caller)
      : backend_(backend), stage_(stage), buffers_(buffers), caller_(caller), groups_(backend) {}

  Status Run(bool* is_joined) {
    const BackendScope scope(backend_);
    TF_INTEROP_RETURN_IF_ERROR(scope.status());
    const Status acquired = groups_.Acquire(stage_.lane_priorities);
    if (!acquired.ok()) {
      CountFallback("no stream groups for a stage's lanes, so it ran in sequence",
                    acquired.message());
    }
    size_t forked = 0;
    begin_ = Mark(caller_);
    Status status = ForkAndLaunch(&forked);
    const Status joined = Join(forked);
    if (begin_ != nullptr) Record(TimelineSpan::Row::kStage, {0, call_->op(), ""}, begin_, caller_);
    if (is_joined != nullptr) *is_joined = joined.ok();
    status.Update(joined);
    return status;
  }

  // Captures the work that Run would enqueue. The capture begins on the caller's stream.
  Status Capture(CapturedWork* captured) {
    const BackendScope scope(backend_);
    TF_INTEROP_RETURN_IF_ERROR(scope.status());
    // No stream may be made during the capture.
    TF_INTEROP_RETURN_IF_ERROR(groups_.Acquire(stage_.lane_priorities));
    TF_INTEROP_RETURN_IF_ERROR(backend_->BeginCapture(caller_));
    is_capturing_ = true;
    size_t forked = 0;
    Status status = ForkAndLaunch(&forked);
    status.Update(Join(forked));
    status.Update(backend_->EndCapture(caller_, captured));
    return status;
  }

 private:
  // Turns an exception into an error, so that the lanes that have begun are joined after it too.
  Status ForkAndLaunch(size_t* forked) {
    try {
      TF_INTEROP_RETURN_IF_ERROR(Fork(forked));
      for (const StageLaunch& launch : stage_.launches) {
        TF_INTEROP_RETURN_IF_ERROR(Enqueue(launch));
      }
      return Status::Ok();
    } catch (const std::bad_alloc&) {
      return ResourceExhausted("Out of host memory while launching a stage.");
    } catch (const std::exception& error) {
      return Internal(std::string("Launching a stage failed: ") + error.what());
    }
  }

  // Makes the streams of all lanes wait for the work that is on the caller's stream now. `forked`
  // counts the lanes that wait or need not.
  Status Fork(size_t* forked) {
    Event fork = nullptr;
    for (*forked = 0; *forked < stage_.lane_priorities.size(); ++*forked) {
      StreamGroup* const group = groups_[*forked];
      if (group == nullptr) continue;
      if (fork == nullptr) {
        TF_INTEROP_RETURN_IF_ERROR(backend_->Record(group->fork_event, caller_));
        fork = group->fork_event;
      }
      TF_INTEROP_RETURN_IF_ERROR(backend_->Wait(group->stream, fork));
    }
    return Status::Ok();
  }

  // Makes the caller's stream wait for the first `forked` lanes. Continues after an error: a lane
  // that is not joined would run on while the caller reuses its memory.
  Status Join(size_t forked) {
    Status status;
    for (size_t lane = 0; lane < forked; ++lane) {
      StreamGroup* const group = groups_[lane];
      if (group == nullptr) continue;
      Status joined = backend_->Record(group->join_event, group->stream);
      if (joined.ok()) joined = backend_->Wait(caller_, group->join_event);
      if (joined.ok()) continue;
      if (is_capturing_) return joined;  // nothing runs, and nothing may be waited for
      CountFallback("a lane that could not be joined was waited for on the host", joined.message());
      status.Update(backend_->Synchronize(group->stream));
    }
    return status;
  }

  // Null if the call is not recorded.
  std::shared_ptr<const TimeMark> Mark(Stream stream) {
    std::shared_ptr<const TimeMark> mark;
    // If this fails, the stage still runs.
    if (call_ != nullptr) (void)backend_->Mark(stream, begin_, &mark);
    return mark;
  }

  // Records a span of a stream from `begin` to now.
  void Record(TimelineSpan::Row row, TraceLabel label, std::shared_ptr<const TimeMark> begin,
              Stream stream) {
    std::shared_ptr<const TimeMark> end = Mark(stream);
    if (end == nullptr) return;
    call_->Add({row, label.lane, std::move(label.convolutions), std::move(label.algorithm),
                std::move(begin), std::move(end)});
  }

  Status Enqueue(const StageLaunch& launch) {
    StreamGroup* const group = groups_[stage_.steps[launch.step].lane];
    const Stream stream = group != nullptr ? group->stream : caller_;
    const std::shared_ptr<const TimeMark> begin = begin_ != nullptr ? Mark(stream) : nullptr;
    Status status = Launch(launch, stream);
    if (begin != nullptr) {
      Record(TimelineSpan::Row::kLane, LabelOf(stage_, launch), begin, stream);
    }
    if (status.ok()) return status;
    const TraceLabel label = LabelOf(stage_, launch);
    return AtStep(label.convolutions, label.algorithm, status);
  }

  Status Launch(const StageLaunch& launch, Stream stream) {
    const TraceScope scope([&] { return LabelOf(stage_, launch); });
    const PreparedStep& step = stage_.steps[launch.step];
    void* const workspace = buffers_.lane_workspaces[step.lane];
    if (launch.merged != StageLaunch::kNotMerged) {
      const MergedSteps& merged = stage_.merged[launch.merged];
      const void* const joined_filter =
          buffers_.joined_filters.empty() ? nullptr : buffers_.joined_filters[launch.merged];
      return LaunchMerge(backend_, merged.merge, buffers_.steps, merged.steps, joined_filter,
                         workspace, stream);
    }
    const ConvolutionBuffers& buffers = buffers_.steps[launch.step];
    if (!step.convolution) return backend_->FillZero(buffers.result, step.zero_bytes, stream);
    return backend_->Launch(*step.convolution, buffers, workspace, stream);
  }

  Backend* const backend_;
  const PreparedStage& stage_;
  const StageBuffers& buffers_;
  const Stream caller_;
  const TimelineCall* const call_ = CurrentCall(backend_);  // null if it is not recorded
  std::shared_ptr<const TimeMark> begin_;  // of the stage; null if it is not recorded
  LeasedStreamGroups groups_;
  bool is_capturing_ = false;
};

// Captures the stage on a stream of the backend instead of the caller's.
Status CaptureStage(Backend* backend, const PreparedStage& stage, const StageBuffers& buffers,
                    CapturedWork* captured) {
  LeasedStreamGroups origin(backend);
  TF_INTEROP_RETURN_IF_ERROR(origin.Acquire({0}));
  return StageRun(backend, stage, buffers, origin[0]->stream).Capture(captured);
}

}  // namespace

Stage OnFewerLanes(const Stage& stage, size_t lane_count) {
  Stage fewer;
  fewer.steps = stage.steps;
  fewer.lanes.resize(std::min(lane_count, stage.lanes.size()));
  for (size_t i = 0; i < stage.lanes.size(); ++i) {
    std::vector<size_t>& steps = fewer.lanes[i % lane_count].steps;
    steps.insert(steps.end(), stage.lanes[i].steps.begin(), stage.lanes[i].steps.end());
  }
  for (Lane& lane : fewer.lanes) std::sort(lane.steps.begin(), lane.steps.end());
  return fewer;
}

bool PreparedStage::is_provisional() const {
  return !std::all_of(fallbacks.begin(), fallbacks.end(), IsLasting) ||
         !std::all_of(unmerged.begin(), unmerged.end(), IsLasting);
}

Status PrepareStage(Backend* backend, const Stage& stage, const PrepareOptions& options,
                    PreparedStage* prepared) {
  *prepared = PreparedStage();
  for (const Step& step : stage.steps) {
    const Status valid = Validate(step.convolution);
    if (!valid.ok()) return AtStep(step.name, "", valid);
  }
  Stage fewer;
  if (stage.lanes.size() > kMaxLanes) fewer = OnFewerLanes(stage, kMaxLanes);
  const Stage& runs = fewer.lanes.empty() ? stage : fewer;
  prepared->steps.resize(runs.steps.size());
  for (size_t lane = 0; lane < runs.lanes.size(); ++lane) {
    TF_INTEROP_RETURN_IF_ERROR(PrepareLane(backend, runs, lane, options, prepared));
  }
  prepared->lane_priorities = PrioritiesOf(runs);
  prepared->launches = LaunchesOf(*prepared);
  if (StageReplays::AreOn() && backend->CanCapture()) {
    prepared->replays = std::make_shared<StageReplays>();
  }
  return Status::Ok();
}

PreparedStage PreparedAlone(const std::string& name,
                            std::shared_ptr<const PreparedConvolution> convolution) {
  PreparedStage alone;
  alone.steps.resize(1);
  alone.steps[0].name = name;
  alone.steps[0].convolution = std::move(convolution);
  alone.lane_workspace_bytes = {WorkspaceBytesOf(alone.steps[0])};
  return PreparedInSequence(alone);
}

PreparedStage PreparedInSequence(const PreparedStage& stage) {
  PreparedStage sequence = stage;
  for (PreparedStep& step : sequence.steps) step.lane = 0;
  const std::vector<size_t>& bytes = stage.lane_workspace_bytes;
  sequence.lane_workspace_bytes = {bytes.empty() ? 0
                                                 : *std::max_element(bytes.begin(), bytes.end())};
  sequence.lane_priorities = {std::nullopt};
  sequence.launches = LaunchesOf(sequence);
  sequence.replays = nullptr;
  return sequence;
}

Status RunStage(Backend* backend, const PreparedStage& stage, const StageBuffers& buffers,
                Stream caller, bool* is_joined) {
  // Nothing is enqueued yet.
  if (is_joined != nullptr) *is_joined = true;
  if (stage.launches.empty()) return Status::Ok();
  StageRun run(backend, stage, buffers, caller);
  // A graph has no marks for a timeline, and is not part of another.
  if (stage.replays == nullptr || CurrentCall(backend) != nullptr || backend->IsCaptured()) {
    return run.Run(is_joined);
  }
  const auto capture = [&](CapturedWork* captured) {
    return CaptureStage(backend, stage, buffers, captured);
  };
  if (stage.replays->Run(backend, buffers, caller, std::ref(capture))) return Status::Ok();
  const Status status = run.Run(is_joined);
  if (status.ok()) stage.replays->NotePlainRun();
  return status;
}

Status CheckGroups(Backend* backend, const PreparedStage& stage) {
  return LeasedStreamGroups(backend).Acquire(stage.lane_priorities);
}

}  // namespace tf_interop

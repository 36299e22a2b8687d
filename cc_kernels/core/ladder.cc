#include "cc_kernels/core/ladder.h"

#include <utility>

#include "cc_kernels/core/counters.h"

namespace tf_interop {
namespace {

constexpr char kNoMemory[] = "no memory for the workspaces of a stage";
constexpr char kFailedLaunch[] = "a stage that failed ran anew";

Stage WithoutPins(Stage stage) {
  for (Step& step : stage.steps) step.algorithm.clear();
  return stage;
}

Stage Unmerged(const Stage& stage) { return OnFewerLanes(stage, stage.lanes.size()); }

PrepareOptions WithLeastWorkspace(PrepareOptions options) {
  options.workspace_limit_bytes = 0;
  return options;
}

// The ladder for one stage.
class Ladder {
 public:
  Ladder(Backend* backend, const Stage& stage, const PrepareOptions& options,
         const LadderCalls& calls)
      : backend_(backend), stage_(stage), options_(options), calls_(calls) {}

  // Takes `rung` for a stage on `lane_count` lanes, if it has anything that those above have not.
  Status Take(Rung rung, size_t lane_count, LesserStage* lesser) const {
    lesser->rung = rung;
    switch (rung) {
      case Rung::kUnmerged:
        return Get(Unmerged(stage_), options_, lesser);
      case Rung::kFewerLanes:
        return Get(OnFewerLanes(stage_, lane_count), options_, lesser);
      case Rung::kFewerLanesLeastWorkspace:
        return Get(WithoutPins(OnFewerLanes(stage_, lane_count)), WithLeastWorkspace(options_),
                   lesser);
      case Rung::kSequence:
        return Get(InSequence(stage_), options_, lesser);
      case Rung::kSequenceOwnChoice:
        return Get(WithoutPins(InSequence(stage_)), options_, lesser);
      case Rung::kSequenceLeastWorkspace:
        return Get(WithoutPins(InSequence(stage_)), WithLeastWorkspace(options_), lesser);
      case Rung::kStock:
        break;
    }
    return has_stock() ? Status::Ok() : Unsupported("There are no stock kernels to run.");
  }

  bool has_stock() const { return calls_.run_stock != nullptr; }

 private:
  Status Get(const Stage& stage, const PrepareOptions& options, LesserStage* lesser) const {
    TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend_, stage, options, &lesser->stage));
    const std::vector<size_t>& bytes = lesser->stage.lane_workspace_bytes;
    const bool is_last = lesser->rung == Rung::kSequenceLeastWorkspace && !has_stock();
    if (calls_.get_workspaces(bytes, is_last, &lesser->lane_workspaces)) return Status::Ok();
    size_t sum = 0;
    for (const size_t each : bytes) sum += each;
    return ResourceExhausted("Expected memory for workspaces of " + std::to_string(sum) +
                             " bytes, got none. Use smaller batches.");
  }

  Backend* const backend_;
  const Stage& stage_;
  const PrepareOptions& options_;
  const LadderCalls& calls_;
};

// How many lanes the rung is tried with, from the most to the fewest; none where it has nothing
// that those above have not.
std::vector<size_t> LaneCountsOf(Rung rung, const PreparedStage& planned) {
  const size_t lanes = planned.lane_workspace_bytes.size();
  std::vector<size_t> halves;
  for (size_t count = lanes; count > 2; halves.push_back(count)) count = (count + 1) / 2;
  switch (rung) {
    case Rung::kUnmerged:
      if (planned.merged.empty()) return {};
      return {lanes};
    case Rung::kFewerLanes:
      return halves;
    case Rung::kFewerLanesLeastWorkspace:
      if (lanes == 1) return {};
      return {2};
    case Rung::kSequence:
      if (lanes == 1) return {};
      return {1};
    default:
      return {1};
  }
}

}  // namespace

Status FindForMemory(Backend* backend, const Stage& stage, const PrepareOptions& options,
                     const PreparedStage& planned, const LadderCalls& calls, LesserStage* lesser) {
  const Ladder ladder(backend, stage, options, calls);
  Status last;
  for (const RungDescription& rung : kLadder) {
    if (!rung.for_memory || (rung.rung == Rung::kStock && !ladder.has_stock())) continue;
    for (const size_t lane_count : LaneCountsOf(rung.rung, planned)) {
      *lesser = LesserStage();
      last = ladder.Take(rung.rung, lane_count, lesser);
      if (last.ok()) return last;
    }
  }
  return last;
}

void CountForMemory(Rung rung) {
  for (const RungDescription& each : kLadder) {
    if (each.rung == rung) CountFallback(kNoMemory, each.name);
  }
}

Status DescendForMemory(Backend* backend, const Stage& stage, const PrepareOptions& options,
                        const PreparedStage& planned, const LadderCalls& calls,
                        LesserStage* lesser) {
  TF_INTEROP_RETURN_IF_ERROR(FindForMemory(backend, stage, options, planned, calls, lesser));
  CountForMemory(lesser->rung);
  return Status::Ok();
}

Status RunOrDescend(Backend* backend, const Stage& stage, const PrepareOptions& options,
                    const PreparedStage& prepared, const StageBuffers& buffers, Stream caller,
                    const LadderCalls& calls) {
  bool is_joined = false;
  Status first = RunStage(backend, prepared, buffers, caller, &is_joined);
  if (first.ok() || !is_joined) return first;

  const Ladder ladder(backend, stage, options, calls);
  Status last;
  for (const RungDescription& rung : kLadder) {
    if (!rung.for_failed_launch || (rung.rung == Rung::kStock && !ladder.has_stock())) continue;
    LesserStage lesser;
    last = ladder.Take(rung.rung, /*lane_count=*/1, &lesser);
    if (!last.ok()) continue;
    if (rung.rung == Rung::kStock) {
      last = calls.run_stock();
    } else {
      StageBuffers own = {buffers.steps, lesser.lane_workspaces, {}};
      // Filters were transformed for other algorithms.
      for (ConvolutionBuffers& each : own.steps) each.transformed_filter = nullptr;
      last = RunStage(backend, lesser.stage, own, caller);
    }
    if (!last.ok()) continue;
    CountFallback(kFailedLaunch, rung.name + (": " + first.message()));
    return Status::Ok();
  }
  return Status(first.code(), first.message() + " The stage was run anew: " + last.message());
}

Status RunStock(const LadderCalls& calls, const std::string& kind, const std::string& reason) {
  if (calls.run_stock == nullptr) return Unsupported(reason);
  CountFallback(kind, reason);
  return calls.run_stock();
}

}  // namespace tf_interop

#include "cc_kernels/core/ladder.h"

#include <numeric>
#include <utility>

#include "cc_kernels/core/counters.h"

namespace tf_interop {
namespace {

constexpr char kNoMemory[] = "no memory for the workspaces of a stage";
constexpr char kFailedLaunch[] = "a stage that failed ran anew";

struct Attempt {
  Rung rung;
  Stage stage;
  PrepareOptions options;
};

Stage WithoutPins(Stage stage) {
  for (Step& step : stage.steps) step.algorithm.clear();
  return stage;
}

Attempt WithLeastWorkspace(Rung rung, const Stage& stage, PrepareOptions options) {
  options.workspace_limit_bytes = 0;
  return {rung, WithoutPins(stage), options};
}

std::vector<Attempt> AttemptsForMemory(const Stage& stage, const PrepareOptions& options,
                                       const PreparedStage& planned) {
  const size_t lanes = planned.lane_workspace_bytes.size();
  std::vector<Attempt> attempts;
  if (!planned.merged.empty()) {
    attempts.push_back({Rung::kUnmerged, OnFewerLanes(stage, lanes), options});
  }
  for (size_t count = lanes; count > 2;) {
    count = (count + 1) / 2;
    attempts.push_back({Rung::kFewerLanes, OnFewerLanes(stage, count), options});
  }
  if (lanes > 1) {
    attempts.push_back(
        WithLeastWorkspace(Rung::kFewerLanesLeastWorkspace, OnFewerLanes(stage, 2), options));
    attempts.push_back({Rung::kSequence, InSequence(stage), options});
  }
  attempts.push_back(WithLeastWorkspace(Rung::kSequenceLeastWorkspace, InSequence(stage), options));
  return attempts;
}

Status Take(Backend* backend, const Attempt& attempt, const LadderCalls& calls,
            LesserStage* lesser) {
  *lesser = LesserStage();
  lesser->rung = attempt.rung;
  TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend, attempt.stage, attempt.options, &lesser->stage));
  const std::vector<size_t>& bytes = lesser->stage.lane_workspace_bytes;
  const bool is_last = attempt.rung == Rung::kSequenceLeastWorkspace && !calls.run_stock;
  if (calls.get_workspaces(bytes, is_last, &lesser->lane_workspaces)) return Status::Ok();
  const size_t sum = std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  return ResourceExhausted("No memory for workspaces of " + std::to_string(sum) +
                           " bytes. Use smaller batches.");
}

const char* NameOf(Rung rung) { return kRungNames[static_cast<size_t>(rung)]; }

}  // namespace

Status FindForMemory(Backend* backend, const Stage& stage, const PrepareOptions& options,
                     const PreparedStage& planned, const LadderCalls& calls, LesserStage* lesser) {
  Status last;
  for (const Attempt& attempt : AttemptsForMemory(stage, options, planned)) {
    last = Take(backend, attempt, calls, lesser);
    if (last.ok()) return last;
  }
  *lesser = LesserStage();
  return calls.run_stock ? Status::Ok() : last;
}

void CountForMemory(Rung rung) { CountFallback(kNoMemory, NameOf(rung)); }

Status RunOrDescend(Backend* backend, const Stage& stage, const PrepareOptions& options,
                    const PreparedStage& prepared, const StageBuffers& buffers, Stream caller,
                    const LadderCalls& calls) {
  bool is_joined = false;
  const Status first = RunStage(backend, prepared, buffers, caller, &is_joined);
  if (first.ok() || !is_joined) return first;

  const auto count = [&first](Rung rung) {
    CountFallback(kFailedLaunch, NameOf(rung) + (": " + first.message()));
  };
  Status last;
  for (const Attempt& attempt :
       {Attempt{Rung::kSequenceOwnChoice, WithoutPins(InSequence(stage)), options},
        WithLeastWorkspace(Rung::kSequenceLeastWorkspace, InSequence(stage), options)}) {
    LesserStage lesser;
    last = Take(backend, attempt, calls, &lesser);
    if (!last.ok()) continue;
    StageBuffers own = {buffers.steps, lesser.lane_workspaces, {}};
    // Filters were transformed for other algorithms.
    for (ConvolutionBuffers& each : own.steps) each.transformed_filter = nullptr;
    last = RunStage(backend, lesser.stage, own, caller);
    if (!last.ok()) continue;
    count(attempt.rung);
    return last;
  }
  if (calls.run_stock) {
    last = calls.run_stock();
    if (last.ok()) {
      count(Rung::kStock);
      return last;
    }
  }
  return Status(first.code(), first.message() + " The stage was run anew: " + last.message());
}

Status RunStock(const LadderCalls& calls, const std::string& kind, const std::string& reason) {
  if (!calls.run_stock) return Unsupported(reason);
  CountFallback(kind, reason);
  return calls.run_stock();
}

}  // namespace tf_interop

#include "cc_kernels/core/ladder.h"

#include <optional>
#include <utility>

#include "cc_kernels/core/counters.h"

namespace tf_interop {
namespace {

constexpr char kNoMemory[] = "no memory for the workspaces of a stage";
constexpr char kFailedLaunch[] = "a failed stage ran again";

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

// Empty if the stage cannot be prepared or there is no memory for it.
std::optional<LesserStage> Take(Backend* backend, const Attempt& attempt,
                                const LadderCalls& calls) {
  LesserStage lesser;
  lesser.rung = attempt.rung;
  if (!PrepareStage(backend, attempt.stage, attempt.options, &lesser.stage).ok()) return {};
  if (!calls.get_workspaces(lesser.stage.lane_workspace_bytes, &lesser.lane_workspaces)) return {};
  return lesser;
}

const char* NameOf(Rung rung) { return kRungNames[static_cast<size_t>(rung)]; }

}  // namespace

LesserStage FindForMemory(Backend* backend, const Stage& stage, const PrepareOptions& options,
                          const PreparedStage& planned, const LadderCalls& calls) {
  for (const Attempt& attempt : AttemptsForMemory(stage, options, planned)) {
    if (std::optional<LesserStage> lesser = Take(backend, attempt, calls)) return *lesser;
  }
  return LesserStage();
}

void CountForMemory(Rung rung) { CountFallback(kNoMemory, NameOf(rung)); }

Status RunOrDescend(Backend* backend, const Stage& stage, const PrepareOptions& options,
                    const PreparedStage& prepared, const StageBuffers& buffers, Stream caller,
                    const LadderCalls& calls) {
  bool is_joined = false;
  Status first = RunStage(backend, prepared, buffers, caller, &is_joined);
  if (first.ok() || !is_joined) return first;

  const auto count = [&first](Rung rung) {
    CountFallback(kFailedLaunch, NameOf(rung) + (": " + first.message()));
    return Status::Ok();
  };
  for (const Attempt& attempt :
       {Attempt{Rung::kSequenceOwnChoice, WithoutPins(InSequence(stage)), options},
        WithLeastWorkspace(Rung::kSequenceLeastWorkspace, InSequence(stage), options)}) {
    const std::optional<LesserStage> lesser = Take(backend, attempt, calls);
    if (!lesser) continue;
    StageBuffers own = {buffers.steps, lesser->lane_workspaces, {}};
    // Filters were transformed for other algorithms.
    for (ConvolutionBuffers& each : own.steps) each.transformed_filter = nullptr;
    if (RunStage(backend, lesser->stage, own, caller).ok()) return count(attempt.rung);
  }
  const Status last = calls.run_stock();
  if (last.ok()) return count(Rung::kStock);
  return Status(first.code(), first.message() + " The stage was run again: " + last.message());
}

}  // namespace tf_interop

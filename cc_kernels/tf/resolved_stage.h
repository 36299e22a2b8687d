// What a ConvStage node comes to for inputs of given shapes: calls that bring the same shapes,
// under the same switches, share one.
#ifndef TF_INTEROP_TF_RESOLVED_STAGE_H_
#define TF_INTEROP_TF_RESOLVED_STAGE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/ladder.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/transformed_filters.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_interop {

// A launch that may read filters as they were transformed once (held_filters.h).
struct HeldFilter {
  static constexpr size_t kNotMerged = ~size_t{0};
  std::vector<size_t> inputs;  // that are the filters: one, or those that are joined
  size_t step = 0;             // the first that reads them
  size_t operation = 0;        // of that step
  size_t merged = kNotMerged;  // position among PreparedStage::merged
  TransformedFilterKey key;
};

// Immutable.
struct ResolvedStage {
  // By operation.
  std::vector<tensorflow::TensorShape> result_shapes;
  std::vector<bool> computes_nothing;  // its result is empty, or zeros as nothing is read

  const StageSchedule* schedule = nullptr;  // the one for this batch size, or the first
  PrepareOptions options;
  Stage stage;             // as the schedule has it, with what its steps compute
  PreparedStage prepared;  // nothing where the stage has no plan
  // Why there is nothing prepared, so that the stage runs as without a plan: its kind among
  // fallbacks (core/ladder.h), null if it is prepared, and the reason.
  const char* unplanned_kind = nullptr;
  std::string why_unplanned;
  // By which rung it is prepared, where the plan is over the user's limit for workspaces; at stock
  // nothing is prepared.
  std::optional<Rung> rung;
  std::vector<HeldFilter> held_filters;

  // Where something was refused only for now, as for lack of memory: when to resolve it again.
  std::optional<std::chrono::steady_clock::time_point> try_again_at;
};

// Resolves the shapes of all steps and prepares them by the schedule for their batch size.
//
// The batch size of a stage is that of most of its convolutions, of two that are as frequent the
// first one's: a plan says the batch size of a graph in the same way, so that convolutions of a
// detector's regions, or of a constant, do not decide. Those that compute nothing do not count.
absl::Status ResolveStage(const StageProgram& program, const tensorflow::OpInputList& inputs,
                          const tensorflow::OpInputList& sizes, const PrepareOptions& options,
                          Backend* backend, ResolvedStage* resolved);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_RESOLVED_STAGE_H_

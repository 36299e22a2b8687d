// A ConvStage node resolved for inputs of given shapes. Calls with the same shapes and switches
// share it.
#ifndef TF_INTEROP_TF_RESOLVED_STAGE_H_
#define TF_INTEROP_TF_RESOLVED_STAGE_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/ladder.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/stage_timing.h"
#include "cc_kernels/core/transformed_filters.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_interop {

// A launch that may read filters that were transformed once.
struct HeldFilter {
  static constexpr size_t kNotMerged = ~size_t{0};
  std::vector<size_t> inputs;  // the filter, or several joined ones
  size_t step = 0;             // the first that reads them
  size_t operation = 0;        // of that step
  size_t merged = kNotMerged;  // position among PreparedStage::merged
  TransformedFilterKey key;
};

// How a stage is prepared.
struct StageOptions {
  PrepareOptions convolutions;
  size_t workspace_limit_bytes = 0;  // of all workspaces together

  // For keys and attributes.
  static constexpr size_t kNumbers = 4;
  std::array<int64_t, kNumbers> Numbers() const;
  static StageOptions Of(absl::Span<const int64_t> numbers);
};

// Immutable.
struct ResolvedStage {
  // By operation.
  std::vector<tensorflow::TensorShape> result_shapes;
  std::vector<bool> computes_nothing;  // the result is empty, or zeros because nothing is read

  const StageSchedule* schedule = nullptr;  // for this batch size, or else the first
  StageOptions options;
  Stage stage;  // of the schedule, with convolutions
  PreparedStage prepared;
  // If nothing is prepared, so that stock kernels run: the kind of fallback (core/ladder.h), else
  // null; and the reason.
  const char* unplanned_kind = nullptr;
  std::string why_unplanned;
  // The rung for which it is prepared, if the plan exceeds the user's workspace limit; at kStock
  // nothing is prepared.
  std::optional<Rung> rung;
  std::vector<HeldFilter> held_filters;

  // If the stage times itself, else null; and `prepared` on one lane, if that is another way.
  std::shared_ptr<StageTiming> timing;
  std::optional<PreparedStage> in_sequence;

  // If something was refused only for now, such as for lack of memory: when to resolve it again.
  std::optional<std::chrono::steady_clock::time_point> try_again_at;
};

// What the convolutions of a call follow from.
struct StageInputs {
  std::vector<tensorflow::TensorShape> shapes;  // of all inputs of the node
  std::vector<std::vector<int64_t>> sizes;      // the values of those that are sizes, else empty
};

// Resolves a step's convolution and the shape of its result. `sizes` is the value of its sizes
// operand, empty for forward. A gradient with an empty tensor among its three is zeros, whatever
// the sizes of the others.
absl::Status ResolveStep(const StepProgram& step,
                         const std::vector<tensorflow::TensorShape>& operand_shapes,
                         const std::vector<int64_t>& sizes, Convolution* convolution,
                         tensorflow::TensorShape* result_shape);

// Resolves all convolutions, and the shapes of their results, by operation.
absl::Status ResolveConvolutions(const StageProgram& program, const StageInputs& inputs,
                                 std::vector<Convolution>* convolutions,
                                 std::vector<tensorflow::TensorShape>* result_shapes);

// The schedule for the batch size of a stage; null if the program has none for it.
//
// As in a plan, the batch size is the convolutions' most frequent one, or the first of several that
// are equally frequent. So a convolution of a detector's regions, or of a constant, does not
// decide. Convolutions that compute nothing do not count.
const StageSchedule* FindSchedule(const StageProgram& program,
                                  const std::vector<Convolution>& convolutions);

// Resolves the shapes of all steps and prepares them by the schedule for their batch size.
absl::Status ResolveStage(const StageProgram& program, const StageInputs& inputs,
                          const StageOptions& options, Backend* backend, ResolvedStage* resolved);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_RESOLVED_STAGE_H_

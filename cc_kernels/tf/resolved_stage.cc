#include "cc_kernels/tf/resolved_stage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc_kernels/core/ladder.h"
#include "cc_kernels/tf/resolve_step.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using tensorflow::OpInputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

std::vector<int64_t> SizesValue(const Tensor& tensor) {
  const auto values = tensor.flat<int32_t>();
  return std::vector<int64_t>(values.data(), values.data() + values.size());
}

// Shapes of all results, and all convolutions, by operation.
absl::Status ResolveSteps(const StageProgram& program, const OpInputList& inputs,
                          const OpInputList& sizes, std::vector<TensorShape>* result_shapes,
                          std::vector<Convolution>* convolutions) {
  result_shapes->resize(program.steps.size());
  convolutions->resize(program.steps.size());
  for (const size_t operation : program.order()) {
    const StepProgram& step = program.steps[operation];
    std::vector<TensorShape> operand_shapes;
    std::vector<int64_t> sizes_value;
    for (const Operand& operand : step.operands) {
      const int index = static_cast<int>(operand.index);
      switch (operand.source) {
        case Operand::Source::kInput:
          operand_shapes.push_back(inputs[index].shape());
          break;
        case Operand::Source::kSize:
          operand_shapes.push_back(sizes[index].shape());
          sizes_value = SizesValue(sizes[index]);
          break;
        case Operand::Source::kStep:
          operand_shapes.push_back((*result_shapes)[operand.index]);
          break;
      }
    }
    TensorShape* const result_shape = &(*result_shapes)[operation];
    TF_RETURN_IF_ERROR(
        ResolveStep(step, operand_shapes, sizes_value, &(*convolutions)[operation], result_shape));
  }
  return absl::OkStatus();
}

// 0 if every convolution computes nothing.
int64_t BatchSizeOf(const ResolvedStage& resolved, const std::vector<Convolution>& convolutions) {
  std::vector<std::pair<int64_t, int>> counts;  // in the order of the operations
  for (size_t i = 0; i < convolutions.size(); ++i) {
    if (resolved.computes_nothing[i]) continue;
    const int64_t batch = convolutions[i].batch;
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& entry) { return entry.first == batch; });
    if (known == counts.end()) {
      counts.emplace_back(batch, 1);
    } else {
      ++known->second;
    }
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

// The schedule for a batch size, or null.
const StageSchedule* FindSchedule(const std::vector<StageSchedule>& schedules, int64_t batch_size) {
  // Where nothing is computed, any will do.
  if (schedules.front().batch_size == 0 || batch_size == 0) return &schedules.front();
  const auto found = std::find_if(
      schedules.begin(), schedules.end(),
      [&](const StageSchedule& schedule) { return schedule.batch_size == batch_size; });
  return found == schedules.end() ? nullptr : &*found;
}

}  // namespace

absl::Status ResolveStage(const StageProgram& program, const OpInputList& inputs,
                          const OpInputList& sizes, const PrepareOptions& options, Backend* backend,
                          ResolvedStage* resolved) {
  std::vector<Convolution> convolutions;
  TF_RETURN_IF_ERROR(ResolveSteps(program, inputs, sizes, &resolved->result_shapes, &convolutions));
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const bool is_empty = resolved->result_shapes[i].num_elements() == 0;
    resolved->computes_nothing.push_back(is_empty || convolutions[i].reads_nothing());
  }
  resolved->options = options;
  const int64_t batch_size = BatchSizeOf(*resolved, convolutions);
  resolved->schedule = FindSchedule(program.schedules, batch_size);
  if (resolved->schedule == nullptr) {
    resolved->schedule = &program.schedules.front();
    resolved->unplanned_kind = kNoPlan;
    resolved->why_unplanned =
        absl::StrCat("batch size ", batch_size, " is not in the plan (",
                     absl::StrJoin(program.schedules, ", ",
                                   [](std::string* text, const StageSchedule& schedule) {
                                     absl::StrAppend(text, schedule.batch_size);
                                   }),
                     ")");
    return absl::OkStatus();
  }
  resolved->stage = resolved->schedule->stage;
  for (size_t i = 0; i < resolved->stage.steps.size(); ++i) {
    const size_t operation = resolved->schedule->operations[i];
    resolved->stage.steps[i].convolution = convolutions[operation];
  }
  const Status prepared = PrepareStage(backend, resolved->stage, options, &resolved->prepared);
  if (resolved->prepared.is_provisional) {
    // The backend waits longer and longer before it tries; until then this costs little.
    resolved->try_again_at = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  }
  if (!prepared.ok()) {
    resolved->unplanned_kind = kNoAlgorithm;
    resolved->why_unplanned = prepared.message();
  }
  return absl::OkStatus();
}

}  // namespace tf_interop

#include "cc_kernels/tf/held_filters.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Memory for the filters at `inputs` transformed. A tensor is a reference to its memory, so holding
// it is enough to keep the filter's address from being given to another.
FilterMemory AllocateFor(OpKernelContext* context, const std::vector<size_t>& inputs,
                         size_t bytes) {
  struct Held {
    std::vector<Tensor> filters;
    Tensor transformed;
  };
  auto held = std::make_shared<Held>();
  // The list `inputs` comes first among the inputs of the op.
  for (const size_t input : inputs) {
    held->filters.push_back(context->input(static_cast<int>(input)));
  }
  if (!AllocateBytes(context, bytes, /*may_wait=*/false, &held->transformed).ok()) return {};
  void* const data = held->transformed.data();
  return {data, std::move(held)};
}

// The filters that one launch reads, which is of `steps`; false where one may not be held.
bool FindInputs(const StageProgram& program, const ResolvedStage& resolved,
                const std::vector<size_t>& steps, HeldFilter* found) {
  for (const size_t step : steps) {
    const StepProgram& each = program.steps[resolved.schedule->operations[step]];
    if (!each.has_held_filter) return false;
    found->inputs.push_back(each.operands[each.filter_operand()].index);
  }
  found->step = steps.front();
  found->operation = resolved.schedule->operations[found->step];
  return true;
}

}  // namespace

absl::Status AllocateBytes(OpKernelContext* context, size_t bytes, bool may_wait, Tensor* tensor) {
  tensorflow::AllocationAttributes attributes;
  attributes.retry_on_failure = may_wait;
  return context->allocate_temp(tensorflow::DT_UINT8,
                                tensorflow::TensorShape({static_cast<int64_t>(bytes)}), tensor,
                                tensorflow::AllocatorAttributes(), attributes);
}

std::vector<HeldFilter> FindHeldFilters(const StageProgram& program, const ResolvedStage& resolved,
                                        Backend* backend) {
  std::vector<HeldFilter> held;
  const auto add = [&](HeldFilter found, const Convolution& convolution,
                       const PreparedConvolution& prepared) {
    found.key.convolution = convolution;
    found.key.algorithm = prepared.algorithm();
    found.key.allow_tf32 = resolved.options.allow_tf32;
    found.key.backend = backend;
    held.push_back(std::move(found));
  };
  std::vector<bool> is_merged(resolved.stage.steps.size(), false);
  for (size_t i = 0; i < resolved.prepared.merged.size(); ++i) {
    const MergedSteps& merged = resolved.prepared.merged[i];
    for (const size_t step : merged.steps) is_merged[step] = true;
    HeldFilter found;
    found.merged = i;
    if (!FindInputs(program, resolved, merged.steps, &found)) continue;
    for (const size_t step : merged.steps) {
      found.key.filter_channels.push_back(resolved.stage.steps[step].convolution.output_channels);
    }
    add(std::move(found), merged.merge.merged.wide, *merged.merge.convolution);
  }
  for (size_t step = 0; step < resolved.stage.steps.size(); ++step) {
    const PreparedConvolution* const prepared = resolved.prepared.steps[step].convolution.get();
    if (is_merged[step] || prepared == nullptr || prepared->transformed_filter_bytes() == 0) {
      continue;
    }
    HeldFilter found;
    if (!FindInputs(program, resolved, {step}, &found)) continue;
    add(std::move(found), resolved.stage.steps[step].convolution, *prepared);
  }
  return held;
}

void BindHeldFilters(OpKernelContext* context, const ResolvedStage& resolved, Stream caller,
                     TransformedFilters* filters, StageBuffers* buffers,
                     std::vector<std::shared_ptr<TransformedFilter>>* bound) {
  buffers->joined_filters.assign(resolved.prepared.merged.size(), nullptr);
  FilterAddresses addresses;
  for (const HeldFilter& each : resolved.held_filters) {
    addresses.clear();
    for (const size_t input : each.inputs) {
      addresses.push_back(context->input(static_cast<int>(input)).data());
    }
    const auto allocate = [&](size_t bytes) { return AllocateFor(context, each.inputs, bytes); };
    std::shared_ptr<TransformedFilter> transformed;
    const void** place = nullptr;
    if (each.merged == HeldFilter::kNotMerged) {
      const PreparedConvolution& prepared = *resolved.prepared.steps[each.step].convolution;
      transformed =
          filters->FindOrMake(each.operation, addresses, each.key, prepared, caller, allocate);
      place = &buffers->steps[each.step].transformed_filter;
    } else {
      const size_t lane = resolved.prepared.steps[each.step].lane;
      transformed = filters->FindOrJoin(each.operation, addresses, each.key,
                                        resolved.prepared.merged[each.merged].merge,
                                        buffers->lane_workspaces[lane], caller, allocate);
      place = &buffers->joined_filters[each.merged];
    }
    if (transformed == nullptr) continue;
    *place = transformed->data();
    bound->push_back(std::move(transformed));
  }
}

}  // namespace tf_interop

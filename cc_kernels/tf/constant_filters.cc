#include "cc_kernels/tf/constant_filters.h"

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
  for (const size_t input : inputs) {
    held->filters.push_back(context->input(static_cast<int>(input)));
  }
  if (!AllocateBytes(context, bytes, /*may_wait=*/false, &held->transformed).ok()) return {};
  void* const data = held->transformed.data();
  return {data, std::move(held)};
}

// The list `inputs` comes first among the inputs of the op.
const void* AddressOf(OpKernelContext* context, size_t input) {
  return context->input(static_cast<int>(input)).data();
}

// The filters that one launch reads, which is of `steps`; false where one is not constant.
bool FindInputs(const StageProgram& program, const ResolvedStage& resolved,
                const std::vector<size_t>& steps, ConstantFilter* found) {
  for (const size_t step : steps) {
    const StepProgram& each = program.steps[resolved.schedule->operations[step]];
    if (!each.has_constant_filter) return false;
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

std::vector<ConstantFilter> FindConstantFilters(OpKernelContext* context,
                                                const StageProgram& program,
                                                const ResolvedStage& resolved, Backend* backend) {
  std::vector<ConstantFilter> constant;
  const auto add = [&](ConstantFilter found, const Convolution& convolution,
                       const PreparedConvolution& prepared) {
    for (const size_t input : found.inputs) {
      found.key.filters.push_back(AddressOf(context, input));
    }
    found.key.convolution = convolution;
    found.key.algorithm = prepared.algorithm();
    found.key.allow_tf32 = resolved.options.allow_tf32;
    found.key.backend = backend;
    constant.push_back(std::move(found));
  };
  std::vector<bool> is_merged(resolved.stage.steps.size(), false);
  for (size_t i = 0; i < resolved.prepared.merged.size(); ++i) {
    const MergedSteps& merged = resolved.prepared.merged[i];
    for (const size_t step : merged.steps) is_merged[step] = true;
    ConstantFilter found;
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
    ConstantFilter found;
    if (!FindInputs(program, resolved, {step}, &found)) continue;
    add(std::move(found), resolved.stage.steps[step].convolution, *prepared);
  }
  return constant;
}

void BindConstantFilters(OpKernelContext* context, const ResolvedStage& resolved, Stream caller,
                         TransformedFilters* filters, StageBuffers* buffers,
                         std::vector<std::shared_ptr<TransformedFilter>>* bound) {
  buffers->joined_filters.assign(resolved.prepared.merged.size(), nullptr);
  for (const ConstantFilter& each : resolved.constant_filters) {
    const TransformedFilterKey* key = &each.key;
    TransformedFilterKey of_this_call;
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      const void* const address = AddressOf(context, each.inputs[i]);
      if (key->filters[i] == address) continue;
      if (key == &each.key) of_this_call = each.key;
      key = &of_this_call;
      of_this_call.filters[i] = address;
    }
    const auto allocate = [&](size_t bytes) { return AllocateFor(context, each.inputs, bytes); };
    std::shared_ptr<TransformedFilter> transformed;
    const void** place = nullptr;
    if (each.merged == ConstantFilter::kNotMerged) {
      const PreparedConvolution& prepared = *resolved.prepared.steps[each.step].convolution;
      transformed = filters->FindOrMake(each.operation, *key, prepared, caller, allocate);
      place = &buffers->steps[each.step].transformed_filter;
    } else {
      const size_t lane = resolved.prepared.steps[each.step].lane;
      transformed =
          filters->FindOrJoin(each.operation, *key, resolved.prepared.merged[each.merged].merge,
                              buffers->lane_workspaces[lane], caller, allocate);
      place = &buffers->joined_filters[each.merged];
    }
    if (transformed == nullptr) continue;
    *place = transformed->data();
    bound->push_back(std::move(transformed));
  }
}

}  // namespace tf_interop

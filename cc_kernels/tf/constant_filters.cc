#include "cc_kernels/tf/constant_filters.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Memory for `filters` transformed. A tensor is a reference to its memory, so holding it is enough
// to keep the filter's address from being given to another.
FilterMemory AllocateFor(OpKernelContext* context, const std::vector<Tensor>& filters,
                         size_t bytes) {
  struct Held {
    std::vector<Tensor> filters;
    Tensor transformed;
  };
  auto held = std::make_shared<Held>();
  held->filters = filters;
  if (!AllocateBytesOrGiveUp(context, bytes, &held->transformed).ok()) return {};
  void* const data = held->transformed.data();
  return {data, std::move(held)};
}

// The list `inputs` comes first among the inputs of the op.
const Tensor& FilterOf(OpKernelContext* context, const StepProgram& step) {
  return context->input(step.operands[step.filter_operand()].index);
}

const void* Bind(std::shared_ptr<TransformedFilter> transformed, StageCall* call) {
  if (transformed == nullptr) return nullptr;
  call->transformed_filters.push_back(std::move(transformed));
  return call->transformed_filters.back()->data();
}

// The filter of step `i`, which runs by itself.
const void* BindOne(OpKernelContext* context, const StageProgram& program, Backend* backend,
                    Stream caller, size_t i, TransformedFilters* filters, StageCall* call) {
  const PreparedConvolution* const prepared = call->stage.steps[i].convolution.get();
  if (!program.steps[i].has_constant_filter || prepared == nullptr) return nullptr;
  if (prepared->transformed_filter_bytes() == 0) return nullptr;
  const Tensor& filter = FilterOf(context, program.steps[i]);
  const TransformedFilterKey key = {
      {filter.data()},           {},     call->steps[i].convolution, prepared->algorithm(),
      call->switches.allow_tf32, backend};
  return Bind(
      filters->FindOrMake(i, key, *prepared, caller,
                          [&](size_t bytes) { return AllocateFor(context, {filter}, bytes); }),
      call);
}

// The joined filter of steps that run as one.
const void* BindJoined(OpKernelContext* context, const StageProgram& program, Backend* backend,
                       Stream caller, const MergedSteps& merged, TransformedFilters* filters,
                       StageCall* call) {
  std::vector<Tensor> tensors;
  TransformedFilterKey key;
  for (const size_t step : merged.steps) {
    if (!program.steps[step].has_constant_filter) return nullptr;
    tensors.push_back(FilterOf(context, program.steps[step]));
    key.filters.push_back(tensors.back().data());
    key.filter_channels.push_back(call->steps[step].convolution.output_channels);
  }
  key.convolution = merged.merge.merged.wide;
  key.algorithm = merged.merge.convolution->algorithm();
  key.allow_tf32 = call->switches.allow_tf32;
  key.backend = backend;
  const size_t first = merged.steps.front();
  void* const workspace = call->lane_workspaces[call->stage.steps[first].lane];
  return Bind(
      filters->FindOrJoin(first, key, merged.merge, workspace, caller,
                          [&](size_t bytes) { return AllocateFor(context, tensors, bytes); }),
      call);
}

}  // namespace

void BindConstantFilters(OpKernelContext* context, const StageProgram& program, Backend* backend,
                         Stream caller, TransformedFilters* filters, StageCall* call) {
  if (call->is_short_of_memory) return;
  std::vector<bool> is_merged(program.steps.size(), false);
  for (const MergedSteps& merged : call->stage.merged) {
    call->joined_filters.push_back(
        BindJoined(context, program, backend, caller, merged, filters, call));
    for (const size_t step : merged.steps) is_merged[step] = true;
  }
  for (size_t i = 0; i < program.steps.size(); ++i) {
    if (is_merged[i]) continue;
    call->buffers[i].transformed_filter =
        BindOne(context, program, backend, caller, i, filters, call);
  }
}

void MarkTransformed(const StageCall& call) {
  for (const auto& filter : call.transformed_filters) filter->MarkComplete();
}

}  // namespace tf_interop

#include "cc_kernels/tf/constant_filters.h"

#include <cstddef>
#include <memory>

#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Memory for `filter` transformed. A tensor is a reference to its memory, so holding it is enough
// to keep the filter's address from being given to another.
FilterMemory AllocateFor(OpKernelContext* context, const Tensor& filter, size_t bytes) {
  struct Held {
    Tensor filter, transformed;
  };
  auto held = std::make_shared<Held>();
  held->filter = filter;
  if (!AllocateBytesOrGiveUp(context, bytes, &held->transformed).ok()) return {};
  void* const data = held->transformed.data();
  return {data, std::move(held)};
}

}  // namespace

void BindConstantFilters(OpKernelContext* context, const StageProgram& program, Backend* backend,
                         Stream caller, TransformedFilters* filters, StageCall* call) {
  if (call->is_short_of_memory) return;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const StepProgram& step = program.steps[i];
    const PreparedConvolution* const prepared = call->stage.steps[i].convolution.get();
    if (!step.has_constant_filter || prepared == nullptr) continue;
    if (prepared->transformed_filter_bytes() == 0) continue;
    // The list `inputs` comes first among the inputs of the op.
    const Tensor& filter = context->input(step.operands[step.filter_operand()].index);
    const TransformedFilterKey key = {filter.data(), call->steps[i].convolution,
                                      prepared->algorithm(), call->switches.allow_tf32, backend};
    auto transformed = filters->FindOrMake(i, key, *prepared, caller, [&](size_t bytes) {
      return AllocateFor(context, filter, bytes);
    });
    if (transformed == nullptr) continue;
    call->buffers[i].transformed_filter = transformed->data();
    call->transformed_filters.push_back(std::move(transformed));
  }
}

void MarkTransformed(const StageCall& call) {
  for (const auto& filter : call.transformed_filters) filter->MarkComplete();
}

}  // namespace tf_interop

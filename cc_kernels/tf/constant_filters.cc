#include "cc_kernels/tf/constant_filters.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cc_kernels/core/counters.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Forms of one filter that are kept: for as many batch sizes, say. Beyond it the oldest goes.
constexpr size_t kMostForms = 4;

// Enqueues the transformation on `caller`.
Status Transform(Backend* backend, const PreparedConvolution& prepared, const Tensor& filter,
                 const Tensor& transformed, Stream caller) {
  std::unique_ptr<StreamGroup> group;
  TF_INTEROP_RETURN_IF_ERROR(backend->Acquire(&group));
  const Status status =
      backend->TransformFilter(prepared, filter.data(), transformed.data(), group.get(), caller);
  backend->Release(std::move(group));
  return status;
}

}  // namespace

bool TransformedFilterKey::operator==(const TransformedFilterKey& other) const {
  return filter.SharesBufferWith(other.filter) && filter.data() == other.filter.data() &&
         filter.shape() == other.filter.shape() && convolution == other.convolution &&
         algorithm == other.algorithm && allow_tf32 == other.allow_tf32 && backend == other.backend;
}

void ConstantFilters::Bind(OpKernelContext* context, const StageProgram& program, Backend* backend,
                           Stream caller, StageCall* call) {
  if (call->is_short_of_memory) return;
  std::lock_guard<std::mutex> lock(mutex_);
  forms_.resize(program.steps.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const StepProgram& step = program.steps[i];
    const PreparedConvolution* const prepared = call->stage.steps[i].convolution.get();
    if (!step.has_constant_filter || prepared == nullptr) continue;
    if (prepared->transformed_filter_bytes() == 0) continue;
    // The list `inputs` comes first among the inputs of the op.
    TransformedFilterKey key = {context->input(step.operands[step.filter_operand()].index),
                                call->steps[i].convolution, prepared->algorithm(), call->allow_tf32,
                                backend};
    const auto filter = FindOrMake(context, std::move(key), *prepared, caller, &forms_[i]);
    if (filter == nullptr) continue;
    call->buffers[i].transformed_filter = filter->transformed.data();
    call->transformed_filters.push_back(filter);
  }
}

bool ConstantFilters::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  bool had_any = false;
  for (const Forms& forms : forms_) had_any = had_any || !forms.empty();
  forms_.clear();
  return had_any;
}

std::shared_ptr<TransformedFilter> ConstantFilters::FindOrMake(OpKernelContext* context,
                                                               TransformedFilterKey key,
                                                               const PreparedConvolution& prepared,
                                                               Stream caller, Forms* forms) {
  for (const auto& known : *forms) {
    if (!(known->key == key)) continue;
    return known->stream == caller || known->is_complete ? known : nullptr;
  }
  auto made = std::make_shared<TransformedFilter>();
  const absl::Status allocated =
      AllocateBytesOrGiveUp(context, prepared.transformed_filter_bytes(), &made->transformed);
  if (!allocated.ok()) return nullptr;
  const Status transformed =
      Transform(key.backend, prepared, key.filter, made->transformed, caller);
  if (!transformed.ok()) {
    CountFallback("A constant filter is transformed by every launch: " + transformed.message());
    return nullptr;
  }
  CountFilterTransformation();
  made->key = std::move(key);
  made->stream = caller;
  if (forms->size() == kMostForms) forms->erase(forms->begin());
  forms->push_back(made);
  return made;
}

void MarkTransformed(const StageCall& call) {
  for (const auto& filter : call.transformed_filters) filter->is_complete = true;
}

}  // namespace tf_interop

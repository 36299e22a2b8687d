#include "cc_kernels/core/transformed_filters.h"

#include <utility>

#include "cc_kernels/core/counters.h"

namespace tf_interop {
namespace {

// Enqueues the transformation on `caller`.
Status Transform(const TransformedFilterKey& key, const PreparedConvolution& prepared,
                 void* transformed, Stream caller) {
  std::unique_ptr<StreamGroup> group;
  TF_INTEROP_RETURN_IF_ERROR(key.backend->Acquire(&group));
  const Status status =
      key.backend->TransformFilter(prepared, key.filter, transformed, group.get(), caller);
  key.backend->Release(std::move(group));
  return status;
}

}  // namespace

bool TransformedFilterKey::operator==(const TransformedFilterKey& other) const {
  return filter == other.filter && convolution == other.convolution &&
         algorithm == other.algorithm && allow_tf32 == other.allow_tf32 && backend == other.backend;
}

std::shared_ptr<TransformedFilter> TransformedFilters::FindOrMake(
    size_t step, const TransformedFilterKey& key, const PreparedConvolution& prepared,
    Stream caller, const Allocate& allocate) {
  // Held until the transformation is enqueued: who finds it on the same stream comes behind it.
  std::lock_guard<std::mutex> lock(mutex_);
  if (forms_.size() <= step) forms_.resize(step + 1);
  Forms& forms = forms_[step];
  for (const auto& known : forms) {
    if (known->key() == key) return known->IsReadyOn(caller) ? known : nullptr;
  }
  FilterMemory memory = allocate(prepared.transformed_filter_bytes());
  if (memory.data == nullptr) return nullptr;
  const Status transformed = Transform(key, prepared, memory.data, caller);
  if (!transformed.ok()) {
    CountFallback("a constant filter is transformed by every launch", transformed.message());
    return nullptr;
  }
  CountFilterTransformation();
  if (forms.size() == kMostForms) forms.erase(forms.begin());
  forms.push_back(std::make_shared<TransformedFilter>(key, std::move(memory), caller));
  return forms.back();
}

bool TransformedFilters::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  bool had_any = false;
  for (const Forms& forms : forms_) had_any = had_any || !forms.empty();
  forms_.clear();
  return had_any;
}

}  // namespace tf_interop

#include "cc_kernels/core/transformed_filters.h"

#include <utility>

#include "cc_kernels/core/counters.h"

namespace tf_interop {
bool TransformedFilterKey::operator==(const TransformedFilterKey& other) const {
  return filters == other.filters && filter_channels == other.filter_channels &&
         convolution == other.convolution && algorithm == other.algorithm &&
         allow_tf32 == other.allow_tf32 && backend == other.backend;
}

std::shared_ptr<TransformedFilter> TransformedFilters::FindOrMake(
    size_t step, const TransformedFilterKey& key, const PreparedConvolution& prepared,
    Stream caller, const Allocate& allocate) {
  const auto transform = [&](void* transformed) {
    return key.backend->TransformFilter(prepared, key.filters[0], transformed, caller);
  };
  return FindOrMake(step, key, prepared.transformed_filter_bytes(), transform, caller, allocate);
}

std::shared_ptr<TransformedFilter> TransformedFilters::FindOrJoin(size_t step,
                                                                  const TransformedFilterKey& key,
                                                                  const PreparedMerge& prepared,
                                                                  void* workspace, Stream caller,
                                                                  const Allocate& allocate) {
  const auto join = [&](void* joined) {
    return EnqueueJoinedFilter(key.backend, prepared, key.filters, workspace, joined, caller);
  };
  return FindOrMake(step, key, prepared.joined_filter_bytes(), join, caller, allocate);
}

std::shared_ptr<TransformedFilter> TransformedFilters::FindOrMake(
    size_t step, const TransformedFilterKey& key, size_t bytes, const Transform& transform,
    Stream caller, const Allocate& allocate) {
  // Held until the transformation is enqueued: who finds it on the same stream comes after it.
  std::lock_guard<std::mutex> lock(mutex_);
  if (forms_.size() <= step) forms_.resize(step + 1);
  Forms& forms = forms_[step];
  for (const auto& known : forms) {
    if (known->key() == key) return known->IsReadyOn(caller) ? known : nullptr;
  }
  FilterMemory memory = allocate(bytes);
  if (memory.data == nullptr) return nullptr;
  const Status transformed = transform(memory.data);
  if (!transformed.ok()) {
    CountFallback("a constant filter is transformed by every launch", transformed.message());
    return nullptr;
  }
  CountFilterTransformation();
  if (forms.size() == kMostForms) forms.erase(forms.begin());
  forms.push_back(std::make_shared<TransformedFilter>(key, std::move(memory), caller));
  return forms.back();
}

bool TransformedFilters::GiveUp() {
  std::lock_guard<std::mutex> lock(mutex_);
  bool had_any = false;
  for (const Forms& forms : forms_) had_any = had_any || !forms.empty();
  forms_.clear();
  if (had_any) CountFallback("no memory, so that a stage gave up its transformed filters");
  return had_any;
}

}  // namespace tf_interop

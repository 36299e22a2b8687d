#include "cc_kernels/core/transformed_filters.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cc_kernels/core/counters.h"

namespace tf_interop {
namespace {

struct Stages {
  std::mutex mutex;
  std::set<TransformedFilters*> filters;  // guarded by mutex
};

// Never destroyed, because stages may live until the very end of the process.
Stages& AllStages() {
  static auto* const all = new Stages();
  return *all;
}

}  // namespace

TransformedFilters::TransformedFilters() {
  std::lock_guard<std::mutex> lock(AllStages().mutex);
  AllStages().filters.insert(this);
}

TransformedFilters::~TransformedFilters() {
  std::lock_guard<std::mutex> lock(AllStages().mutex);
  AllStages().filters.erase(this);
}

bool TransformedFilterKey::operator==(const TransformedFilterKey& other) const {
  return filter_channels == other.filter_channels && convolution == other.convolution &&
         algorithm == other.algorithm && allow_tf32 == other.allow_tf32 && backend == other.backend;
}

std::shared_ptr<TransformedFilter> TransformedFilters::FindOrMake(
    size_t step, const FilterAddresses& filters, const TransformedFilterKey& key, size_t bytes,
    Stream caller, const Allocate& allocate, const Transform& transform) {
  // Held until the transformation is enqueued, so that a call that finds it runs after it.
  std::lock_guard<std::mutex> lock(mutex_);
  if (steps_.size() <= step) steps_.resize(step + 1);
  auto& [forms, changes] = steps_[step];
  if (changes == kMostChanges) return nullptr;
  bool is_changed = false;
  for (const auto& known : forms) {
    const bool is_same_form = known->key == key;
    if (is_same_form && known->filters == filters) {
      changes = 0;
      return caller == known->stream || known->is_complete ? known : nullptr;
    }
    // With other shapes it may be joined with the filters of other steps.
    is_changed = is_changed || is_same_form || known->filters[0] != filters[0];
  }
  if (is_changed) {
    forms.clear();
    if (++changes == kMostChanges) return nullptr;
  }
  FilterMemory memory = allocate(bytes);
  if (memory.data == nullptr) return nullptr;
  const Status transformed = transform(memory.data);
  if (!transformed.ok()) {
    CountFallback("a filter could not be transformed in advance", transformed.message());
    return nullptr;
  }
  Count(&Counters::filters_transformed);
  if (forms.size() == kMostForms) forms.erase(forms.begin());
  forms.emplace_back(new TransformedFilter{filters, key, std::move(memory), caller});
  return forms.back();
}

void TransformedFilters::Forget(size_t step, const TransformedFilterKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (step >= steps_.size()) return;
  auto& forms = steps_[step].forms;
  forms.erase(std::remove_if(forms.begin(), forms.end(),
                             [&](const auto& form) { return form->key == key; }),
              forms.end());
}

bool TransformedFilters::GiveUp(const Backend* backend) {
  std::lock_guard<std::mutex> lock(mutex_);
  bool had_any = false;
  for (auto& [forms, changes] : steps_) {
    const auto given_up = std::remove_if(
        forms.begin(), forms.end(), [&](const auto& form) { return form->key.backend == backend; });
    had_any = had_any || given_up != forms.end();
    forms.erase(given_up, forms.end());
  }
  return had_any;
}

bool TransformedFilters::GiveUpAll(const Backend* backend) {
  std::lock_guard<std::mutex> lock(AllStages().mutex);
  bool had_any = false;
  for (TransformedFilters* stage : AllStages().filters) {
    had_any = stage->GiveUp(backend) || had_any;
  }
  if (had_any) CountFallback("no memory, so stages gave up their transformed filters");
  return had_any;
}

}  // namespace tf_interop

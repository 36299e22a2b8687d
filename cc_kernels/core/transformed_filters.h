// The filters of a stage in the form that their algorithms read, transformed once instead of by
// every launch. Those of convolutions that run as one (merged_convolution.h) are joined once.
//
// A transformed filter is used only for a filter at the same address, the same convolution,
// algorithm, switch for TF32 and backend, which together decide its bytes. The filter is held, so
// that no other comes to be at its address. Its caller says that nobody writes it while it is held:
// it is a constant, or a variable's value, which an update leaves alone where it is held. Of
// filters that are joined, all are at the same addresses, in order.
//
// A filter at another address is a changed one: what was made before goes. A step whose filter
// changes in kMostChanges calls in a row is in training. Its filters are not held any more.
//
// It is ready for calls on the stream that the transformation was enqueued on, and for all once it
// is known to have run. A call that comes too early on another stream goes without, and so does one
// for which there is no memory: its launches transform the filter themselves.
#ifndef TF_INTEROP_CORE_TRANSFORMED_FILTERS_H_
#define TF_INTEROP_CORE_TRANSFORMED_FILTERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/merged_convolution.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// What decides the bytes of a transformed filter, beside those of the filter.
struct TransformedFilterKey {
  std::vector<int64_t> filter_channels;  // output channels of each that is joined; else none
  Convolution convolution;
  std::string algorithm;
  bool allow_tf32 = true;
  Backend* backend = nullptr;

  bool operator==(const TransformedFilterKey& other) const;
};

// The filter that a launch reads, or those that are joined for it.
using FilterAddresses = std::vector<const void*>;

// Memory for a transformed filter.
struct FilterMemory {
  void* data = nullptr;               // null where there is none
  std::shared_ptr<const void> owner;  // keeps it, and the memory of the filter that it is made from
};

class TransformedFilter {
 public:
  TransformedFilter(FilterAddresses filters, TransformedFilterKey key, FilterMemory memory,
                    Stream stream)
      : filters_(std::move(filters)),
        key_(std::move(key)),
        memory_(std::move(memory)),
        stream_(stream) {}

  const FilterAddresses& filters() const { return filters_; }
  const TransformedFilterKey& key() const { return key_; }
  const void* data() const { return memory_.data; }

  // Says that the stream that it was enqueued on has run it.
  void MarkComplete() { is_complete_ = true; }
  // Whether work that is enqueued on `stream` now finds it done.
  bool IsReadyOn(Stream stream) const { return stream == stream_ || is_complete_; }

 private:
  const FilterAddresses filters_;
  const TransformedFilterKey key_;
  const FilterMemory memory_;
  const Stream stream_;
  std::atomic<bool> is_complete_{false};
};

// Those of one stage. Thread-safe.
class TransformedFilters {
 public:
  TransformedFilters();
  ~TransformedFilters();
  TransformedFilters(const TransformedFilters&) = delete;
  TransformedFilters& operator=(const TransformedFilters&) = delete;

  // The most forms of one filter that are kept, for as many batch sizes, say. Beyond it the oldest
  // goes.
  static constexpr size_t kMostForms = 4;
  // In so many calls in a row may a filter be another than in the call before, until it is not held
  // any more.
  static constexpr int kMostChanges = 3;

  using Allocate = std::function<FilterMemory(size_t bytes)>;

  // Gives the filter of step `step`, which is the only one of `filters`, as `prepared` reads it;
  // enqueues the transformation on `caller` where that has not been done. Null where the launch has
  // to transform the filter itself. `prepared` is of `key.convolution` and `key.algorithm`, and
  // transforms its filter.
  std::shared_ptr<TransformedFilter> FindOrMake(size_t step, const FilterAddresses& filters,
                                                const TransformedFilterKey& key,
                                                const PreparedConvolution& prepared, Stream caller,
                                                const Allocate& allocate);

  // Likewise for steps that run as one, of which `step` is the first: gives what LaunchMerge takes
  // as joined filter. `workspace` is the one that the launch will have on `caller` or behind it.
  std::shared_ptr<TransformedFilter> FindOrJoin(size_t step, const FilterAddresses& filters,
                                                const TransformedFilterKey& key,
                                                const PreparedMerge& prepared, void* workspace,
                                                Stream caller, const Allocate& allocate);

  // Has `get(may_wait)`, which says whether it got memory, get some for what a stage needs on
  // `backend`. It may wait for others to free theirs only after all stages have given up their
  // filters there, which is counted.
  template <typename Get>
  static bool GetMemory(const Backend* backend, const Get& get) {
    return GetWithoutWaiting(backend, get) || get(/*may_wait=*/true);
  }
  // Likewise, and never waits.
  template <typename Get>
  static bool GetWithoutWaiting(const Backend* backend, const Get& get) {
    return get(/*may_wait=*/false) || (GiveUpAll(backend) && get(/*may_wait=*/false));
  }

 private:
  struct OfStep {
    std::vector<std::shared_ptr<TransformedFilter>> forms;  // oldest first
    int changes = 0;                                        // of the filter, in a row
  };
  using Transform = std::function<Status(void* transformed)>;

  std::shared_ptr<TransformedFilter> FindOrMake(size_t step, const FilterAddresses& filters,
                                                const TransformedFilterKey& key, size_t bytes,
                                                const Transform& transform, Stream caller,
                                                const Allocate& allocate);

  // Forgets those of `backend`; returns whether there were any. Who was given one keeps it.
  bool GiveUp(const Backend* backend);
  // Likewise those of all stages.
  static bool GiveUpAll(const Backend* backend);

  std::mutex mutex_;
  std::vector<OfStep> steps_;  // guarded by mutex_
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_TRANSFORMED_FILTERS_H_

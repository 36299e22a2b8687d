// A stage's filters, transformed once to the form that their algorithms need, not by every launch.
// Filters of merged steps (merged_convolution.h) are joined once.
//
// The filter's address, the convolution, the algorithm, the TF32 switch and the backend determine
// the bytes of a transformed filter, so it serves only where all of them are equal. The filter is
// held, so no other can get its address. The caller guarantees that nobody writes it meanwhile: it
// is a constant, or a variable's value, which an update leaves alone while it is held. Joined
// filters must have the same addresses in the same order.
//
// A filter at another address has changed, and the old form is dropped. If a step's filter changes
// in kMostChanges calls in a row, the step is in training, and its filters are no longer held.
//
// A transformed filter is ready for calls on the stream of its transformation, and for all others
// once the transformation is known to have run. A call that comes too early on another stream, or
// for which there is no memory, transforms the filter itself.
#ifndef TF_INTEROP_CORE_TRANSFORMED_FILTERS_H_
#define TF_INTEROP_CORE_TRANSFORMED_FILTERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

struct TransformedFilterKey {
  std::vector<int64_t> filter_channels;  // output channels of each joined filter, else empty
  Convolution convolution;
  std::string algorithm;
  bool allow_tf32 = true;
  Backend* backend = nullptr;

  bool operator==(const TransformedFilterKey& other) const;
};

// One filter, or several joined ones.
using FilterAddresses = std::vector<const void*>;

struct FilterMemory {
  void* data = nullptr;               // null if there is none
  std::shared_ptr<const void> owner;  // keeps it and the memory of the original filters
};

// A filter whose transformation was enqueued on `stream`.
struct TransformedFilter {
  const FilterAddresses filters;
  const TransformedFilterKey key;
  const FilterMemory memory;
  const Stream stream;
  std::atomic<bool> is_complete{false};  // set once `stream` has run the transformation
};

// The transformed filters of one stage. What is forgotten lives as long as a call uses it.
// Thread-safe.
class TransformedFilters {
 public:
  TransformedFilters();
  ~TransformedFilters();
  TransformedFilters(const TransformedFilters&) = delete;
  TransformedFilters& operator=(const TransformedFilters&) = delete;

  // Forms of one filter, one for each batch size, say. Beyond that, the oldest is dropped.
  static constexpr size_t kMostForms = 4;
  static constexpr int kMostChanges = 3;

  using Allocate = std::function<FilterMemory(size_t bytes)>;
  using Transform = std::function<Status(void* transformed)>;

  // Returns the filter of step `step`, or the joined filters of merged steps that begin with it. If
  // there is none yet, `transform` enqueues `bytes` of it on `caller`. Returns null if the launch
  // must transform the filter itself.
  std::shared_ptr<TransformedFilter> FindOrMake(size_t step, const FilterAddresses& filters,
                                                const TransformedFilterKey& key, size_t bytes,
                                                Stream caller, const Allocate& allocate,
                                                const Transform& transform);

  // Calls get(may_wait), which returns whether it got memory on `backend`. It may wait for others
  // to free theirs only after all stages have given up their filters there, which is counted.
  template <typename Get>
  static bool GetMemory(const Backend* backend, const Get& get) {
    return GetWithoutWaiting(backend, get) || get(/*may_wait=*/true);
  }
  template <typename Get>
  static bool GetWithoutWaiting(const Backend* backend, const Get& get) {
    return get(/*may_wait=*/false) || (GiveUpAll(backend) && get(/*may_wait=*/false));
  }

  // Forgets one form of the filter of step `step`.
  void Forget(size_t step, const TransformedFilterKey& key);

  // All stages forget their filters on `backend`. Returns whether there were any.
  static bool GiveUpAll(const Backend* backend);

 private:
  struct OfStep {
    std::vector<std::shared_ptr<TransformedFilter>> forms;  // oldest first
    int changes = 0;                                        // of the filter, in a row
  };

  bool GiveUp(const Backend* backend);

  std::mutex mutex_;
  std::vector<OfStep> steps_;  // guarded by mutex_
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_TRANSFORMED_FILTERS_H_

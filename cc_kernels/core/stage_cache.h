// Keeps what the last few different calls of one kernel were resolved and prepared to, so that a
// call like one of them finds it again without resolving shapes or preparing anything.
//
// A call is known by its signature: all numbers that decide what is prepared (the dimensions of
// inputs, the values of sizes, the switches for TF32 and determinism, the workspace limit), one
// after another in an order that the kernel keeps to. Signatures are compared as a whole, and never
// by a hash alone.
#ifndef TF_INTEROP_CORE_STAGE_CACHE_H_
#define TF_INTEROP_CORE_STAGE_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tf_interop {

// Numbers that somebody else holds for as long as this is used.
struct SignatureView {
  SignatureView(const int64_t* begin, size_t count) : numbers(begin), size(count) {}
  SignatureView(const std::vector<int64_t>& signature)  // NOLINT: a view of it
      : numbers(signature.data()), size(signature.size()) {}

  const int64_t* numbers;
  size_t size;
};

// Holds at most `limit` values, and forgets the one that was not used for the longest time; who was
// given one keeps it. Thread-safe: its lock is shared with nobody but the callers of the same
// kernel, and held for a comparison of signatures. Find allocates nothing.
template <typename Value>
class StageCache {
 public:
  static constexpr size_t kLimit = 8;

  explicit StageCache(size_t limit = kLimit) : limit_(limit) { entries_.reserve(limit); }

  // Null where there is none. Counts as a use.
  std::shared_ptr<const Value> Find(SignatureView signature) {
    std::lock_guard<std::mutex> lock(mutex_);
    return MoveToFront(signature) ? entries_.front().value : nullptr;
  }

  // Keeps and gives the value that is there already, if any: two threads may prepare the same call.
  std::shared_ptr<const Value> Insert(SignatureView signature, std::shared_ptr<const Value> value) {
    Entry made{std::vector<int64_t>(signature.numbers, signature.numbers + signature.size),
               std::move(value)};
    Entry forgotten;  // goes after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    if (!MoveToFront(signature)) {
      if (entries_.size() == limit_) {
        forgotten = std::move(entries_.back());
        entries_.pop_back();
      }
      entries_.insert(entries_.begin(), std::move(made));
    }
    return entries_.front().value;
  }

 private:
  struct Entry {
    std::vector<int64_t> signature;
    std::shared_ptr<const Value> value;
  };

  // Whether there is an entry of this signature, which is the first one then. Requires mutex_.
  bool MoveToFront(SignatureView signature) {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.signature.size() == signature.size &&
             std::equal(entry.signature.begin(), entry.signature.end(), signature.numbers);
    });
    if (found == entries_.end()) return false;
    std::rotate(entries_.begin(), found, found + 1);
    return true;
  }

  const size_t limit_;
  std::mutex mutex_;
  std::vector<Entry> entries_;  // the last used first; guarded by mutex_
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STAGE_CACHE_H_

// What was used last, by the numbers and names that decide it.
#ifndef TF_INTEROP_CORE_LRU_CACHE_H_
#define TF_INTEROP_CORE_LRU_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

namespace tf_interop {

// Holds at most `limit` values, and forgets the one that was not used for the longest time. Keys
// are compared as a whole, and never by a hash alone. Thread-safe: its lock is held while keys are
// compared. Find allocates nothing.
template <typename Key, typename Value>
class LruCache {
 public:
  explicit LruCache(size_t limit) : limit_(limit) {}

  // Counts as a use.
  std::optional<Value> Find(const Key& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!MoveToFront(key)) return std::nullopt;
    return entries_.front().second;
  }

  // Keeps and gives the value that is there already, if any: two threads may make the same. One
  // that `is_stale` is replaced.
  template <typename IsStale>
  Value Insert(Key key, Value value, const IsStale& is_stale) {
    std::list<std::pair<const Key, Value>> forgotten;  // goes after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    if (!MoveToFront(key)) {
      if (entries_.size() == limit_) {
        forgotten.splice(forgotten.begin(), entries_, std::prev(entries_.end()));
      }
      entries_.emplace_front(std::move(key), std::move(value));
    } else if (is_stale(entries_.front().second)) {
      std::swap(entries_.front().second, value);  // the old one goes after the lock
    }
    return entries_.front().second;
  }
  Value Insert(Key key, Value value) {
    return Insert(std::move(key), std::move(value), [](const Value&) { return false; });
  }

  template <typename Predicate>
  void ForgetIf(const Predicate& predicate) {
    std::list<std::pair<const Key, Value>> forgotten;  // goes after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto next = entries_.begin(); next != entries_.end();) {
      const auto entry = next++;
      if (predicate(entry->second)) forgotten.splice(forgotten.begin(), entries_, entry);
    }
  }

 private:
  // Whether there is an entry of this key, which is the first one then. Requires mutex_.
  bool MoveToFront(const Key& key) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&key](const auto& entry) { return entry.first == key; });
    if (found == entries_.end()) return false;
    entries_.splice(entries_.begin(), entries_, found);
    return true;
  }

  const size_t limit_;
  std::mutex mutex_;
  std::list<std::pair<const Key, Value>> entries_;  // the last used first; guarded by mutex_
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_LRU_CACHE_H_

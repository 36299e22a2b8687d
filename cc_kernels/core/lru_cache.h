// A cache of the most recently used values.
#ifndef TF_INTEROP_CORE_LRU_CACHE_H_
#define TF_INTEROP_CORE_LRU_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

namespace tf_interop {

// Holds at most `limit` values, then drops the least recently used one. Compares whole keys, never
// only hashes. Thread-safe; holds its lock while it compares keys. Find allocates nothing.
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

  // Returns the value already there, if any, because two threads may make the same one. Replaces it
  // if it `is_stale`.
  template <typename IsStale>
  Value Insert(Key key, Value value, const IsStale& is_stale) {
    std::list<std::pair<const Key, Value>> forgotten;  // destroyed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    if (!MoveToFront(key)) {
      if (entries_.size() == limit_) {
        forgotten.splice(forgotten.begin(), entries_, std::prev(entries_.end()));
      }
      entries_.emplace_front(std::move(key), std::move(value));
    } else if (is_stale(entries_.front().second)) {
      std::swap(entries_.front().second, value);  // the old one is destroyed after the lock
    }
    return entries_.front().second;
  }
  Value Insert(Key key, Value value) {
    return Insert(std::move(key), std::move(value), [](const Value&) { return false; });
  }

  template <typename Predicate>
  void ForgetIf(const Predicate& predicate) {
    std::list<std::pair<const Key, Value>> forgotten;  // destroyed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto next = entries_.begin(); next != entries_.end();) {
      const auto entry = next++;
      if (predicate(entry->second)) forgotten.splice(forgotten.begin(), entries_, entry);
    }
  }

 private:
  // Moves the entry of this key to the front. Returns whether there is one. Requires mutex_.
  bool MoveToFront(const Key& key) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&key](const auto& entry) { return entry.first == key; });
    if (found == entries_.end()) return false;
    entries_.splice(entries_.begin(), entries_, found);
    return true;
  }

  const size_t limit_;
  std::mutex mutex_;
  std::list<std::pair<const Key, Value>> entries_;  // most recently used first; guarded by mutex_
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_LRU_CACHE_H_

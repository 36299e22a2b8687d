// A map that keeps what was used last.
#ifndef TF_INTEROP_CORE_LRU_CACHE_H_
#define TF_INTEROP_CORE_LRU_CACHE_H_

#include <cstddef>
#include <list>
#include <unordered_map>
#include <utility>

namespace tf_interop {

// Holds at most `limit` values, and forgets the one that was not used for the longest time. Not
// thread-safe.
template <typename Key, typename Value, typename Hash>
class LruCache {
 public:
  explicit LruCache(size_t limit) : limit_(limit) {}

  // Null where there is none; valid until the next Insert. Counts as a use.
  const Value* Find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->second;
  }

  // Keeps the value that is there already, if any. Gives what was forgotten for it, so that a
  // caller who holds a lock can let go of that first.
  const Value* Insert(const Key& key, Value value, Value* forgotten) {
    if (const Value* known = Find(key)) return known;
    if (entries_.size() == limit_) {
      *forgotten = std::move(entries_.back().second);
      places_.erase(entries_.back().first);
      entries_.pop_back();
    }
    entries_.emplace_front(key, std::move(value));
    places_.emplace(key, entries_.begin());
    return &entries_.front().second;
  }

 private:
  using Entries = std::list<std::pair<const Key, Value>>;

  const size_t limit_;
  Entries entries_;  // the last used first
  std::unordered_map<Key, typename Entries::iterator, Hash> places_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_LRU_CACHE_H_

// Two small containers that threads share without a lock.
#ifndef TF_INTEROP_CORE_LOCK_FREE_H_
#define TF_INTEROP_CORE_LOCK_FREE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace tf_interop {

// Objects that lie ready to be taken. Which one a thread gets is not defined.
template <typename T, size_t kPlaces>
class Shelf {
 public:
  Shelf() = default;
  ~Shelf() {
    while (Take() != nullptr) {
    }
  }
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;

  // Null where there is none.
  std::unique_ptr<T> Take() {
    for (std::atomic<T*>& place : places_) {
      if (place.load(std::memory_order_relaxed) == nullptr) continue;
      if (T* const taken = place.exchange(nullptr, std::memory_order_acquire)) {
        return std::unique_ptr<T>(taken);
      }
    }
    return nullptr;
  }

  // Whether there was room; leaves `object` as it is where there was none.
  bool Put(std::unique_ptr<T>* object) {
    for (std::atomic<T*>& place : places_) {
      T* empty = nullptr;
      if (place.load(std::memory_order_relaxed) == nullptr &&
          place.compare_exchange_strong(empty, object->get(), std::memory_order_release,
                                        std::memory_order_relaxed)) {
        (void)object->release();
        return true;
      }
    }
    return false;
  }

 private:
  std::array<std::atomic<T*>, kPlaces> places_{};
};

// Entries that are added, seldom, and never removed.
template <typename Key, typename Value>
class GrowingList {
 public:
  GrowingList() = default;
  ~GrowingList() {
    for (const Entry* entry = first_; entry != nullptr;) {
      delete std::exchange(entry, entry->next);
    }
  }
  GrowingList(const GrowingList&) = delete;
  GrowingList& operator=(const GrowingList&) = delete;

  // Null where there is none; valid as long as the list.
  const Value* Find(const Key& key) const {
    for (const Entry* entry = first_.load(std::memory_order_acquire); entry != nullptr;
         entry = entry->next) {
      if (entry->key == key) return &entry->value;
    }
    return nullptr;
  }

  // For one thread at a time.
  void Add(Key key, Value value) {
    first_.store(new Entry{std::move(key), std::move(value), first_.load()},
                 std::memory_order_release);
  }

 private:
  struct Entry {
    const Key key;
    const Value value;
    const Entry* const next;
  };

  std::atomic<const Entry*> first_{nullptr};
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_LOCK_FREE_H_

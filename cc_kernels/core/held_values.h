// Values that kernels hold between their calls, all together within a share of the machine's
// memory.
//
// Each trace of a function has kernels of its own, and a program may make any number of traces, one
// for each size of an image, say. So values that were not used for a while make room for new ones.
// Their kernels compute them again when they are called again.
#ifndef TF_INTEROP_CORE_HELD_VALUES_H_
#define TF_INTEROP_CORE_HELD_VALUES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace tf_interop {

// Whether values of so many bytes may be held now, perhaps after others were forgotten. The limit
// is TF_INTEROP_HELD_MB, or else a quarter of the memory of the machine, or of the process's
// cgroup.
bool MakeRoomForHeld(int64_t bytes);

// What one kernel holds, of any type. Thread-safe.
class HeldPlace {
 public:
  HeldPlace();
  ~HeldPlace();
  HeldPlace(const HeldPlace&) = delete;
  HeldPlace& operator=(const HeldPlace&) = delete;

  std::shared_ptr<const void> Get();
  // Returns what was held before.
  std::shared_ptr<const void> Exchange(std::shared_ptr<const void> value, int64_t bytes);

 private:
  friend bool MakeRoomForHeld(int64_t bytes);

  std::atomic<int64_t> used_ns_{0};
  int64_t bytes_ = 0;  // guarded by the lock of all places
  std::mutex mutex_;
  std::shared_ptr<const void> value_;  // guarded by mutex_
};

// What one kernel holds. Thread-safe.
template <typename Value>
class Held {
 public:
  // Null if nothing is held, or if it was forgotten.
  std::shared_ptr<const Value> Get() { return Cast(place_.Get()); }
  void Set(std::shared_ptr<const Value> value, int64_t bytes) {
    place_.Exchange(std::move(value), bytes);
  }
  // Holds nothing from now on.
  std::shared_ptr<const Value> Take() { return Cast(place_.Exchange(nullptr, 0)); }

 private:
  static std::shared_ptr<const Value> Cast(const std::shared_ptr<const void>& value) {
    return std::static_pointer_cast<const Value>(value);
  }

  HeldPlace place_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_HELD_VALUES_H_

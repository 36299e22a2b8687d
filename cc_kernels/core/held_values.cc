#include "cc_kernels/core/held_values.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "cc_kernels/core/timeline.h"

namespace tf_interop {
namespace {

// Values that were used less than a second ago are not forgotten: if those of one call took turns,
// every call would compute all of them.
constexpr int64_t kRecentNs = 1'000'000'000;

struct AllPlaces {
  std::mutex mutex;
  std::set<HeldPlace*> places;  // guarded by mutex, as is the next
  int64_t bytes = 0;
};

// Never destroyed, because kernels may still run while the process ends.
AllPlaces& Places() {
  static auto* const all = new AllPlaces();
  return *all;
}

int64_t MemoryBytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t limit = 0;
    if (file >> limit) bytes = std::min(bytes, limit);  // "max" is no number
  }
  return bytes;
}

int64_t MostHeldBytes() {
  static const int64_t most = [] {
    const char* const text = std::getenv("TF_INTEROP_HELD_MB");
    int64_t megabytes = 0;
    const bool is_set = text != nullptr && std::istringstream(text) >> megabytes;
    return is_set ? megabytes << 20 : MemoryBytes() / 4;
  }();
  return most;
}

}  // namespace

bool MakeRoomForHeld(int64_t bytes) {
  AllPlaces& all = Places();
  std::vector<std::shared_ptr<const void>> forgotten;  // freed after the lock
  const std::lock_guard<std::mutex> lock(all.mutex);
  while (all.bytes + bytes > MostHeldBytes()) {
    HeldPlace* oldest = nullptr;
    for (HeldPlace* const each : all.places) {
      if (each->bytes_ > 0 && (oldest == nullptr || each->used_ns_ < oldest->used_ns_)) {
        oldest = each;
      }
    }
    if (oldest == nullptr || oldest->used_ns_ > NowNs() - kRecentNs) return false;
    all.bytes -= std::exchange(oldest->bytes_, 0);
    const std::lock_guard<std::mutex> lock_of_place(oldest->mutex_);
    forgotten.push_back(std::exchange(oldest->value_, nullptr));
  }
  return true;
}

HeldPlace::HeldPlace() {
  const std::lock_guard<std::mutex> lock(Places().mutex);
  Places().places.insert(this);
}

HeldPlace::~HeldPlace() {
  Exchange(nullptr, 0);
  const std::lock_guard<std::mutex> lock(Places().mutex);
  Places().places.erase(this);
}

std::shared_ptr<const void> HeldPlace::Get() {
  used_ns_.store(NowNs(), std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  return value_;
}

std::shared_ptr<const void> HeldPlace::Exchange(std::shared_ptr<const void> value, int64_t bytes) {
  used_ns_.store(NowNs(), std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(Places().mutex);
  Places().bytes += bytes - std::exchange(bytes_, bytes);
  const std::lock_guard<std::mutex> lock_of_place(mutex_);
  return std::exchange(value_, std::move(value));
}

}  // namespace tf_interop

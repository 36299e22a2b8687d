// Counts of stages in this process, for the user's status report.
#ifndef TF_INTEROP_CORE_COUNTERS_H_
#define TF_INTEROP_CORE_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

namespace tf_interop {

// A table holds at most this many reasons of one kind, and counts others under "<kind>: other
// cases". Reasons name convolutions with their sizes, so a long-running program with changing
// shapes could produce any number of them.
constexpr int kMostReasonsOfAKind = 32;

struct Counters {
  int64_t stages_run = 0;
  int64_t filters_transformed = 0;           // each once for many launches
  int64_t stages_captured = 0;               // as CUDA graphs
  int64_t stages_replayed = 0;               // calls that launched a graph
  int64_t kept_computations = 0;             // of values that depend only on variables
  int64_t kept_bytes = 0;                    // of those values, now
  std::map<std::string, int64_t> fallbacks;  // reasons why other than the plan's choice ran
};

// The counts of a device such as "GPU:0". They live until the process ends.
struct DeviceCounts;
DeviceCounts* FindCounts(const std::string& device);

// While it lives, directs its thread's counts to a device. Without one they go to the device "".
class CountingFor {
 public:
  explicit CountingFor(DeviceCounts* device);
  ~CountingFor();
  CountingFor(const CountingFor&) = delete;
  CountingFor& operator=(const CountingFor&) = delete;

 private:
  DeviceCounts* const outer_;
};

// Thread-safe. Counts for the device of this thread, as in `Count(&Counters::stages_run)`.
void Count(int64_t Counters::* counter);
void AddKeptBytes(DeviceCounts* device, int64_t bytes);
// The reason is `kind`, followed by `detail`, if any.
void CountFallback(const std::string& kind, const std::string& detail = "");

// Leaves out devices without counts.
std::map<std::string, Counters> ReadCountersByDevice();

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_COUNTERS_H_

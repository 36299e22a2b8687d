// What stages did in this process, for the user's status report.
#ifndef TF_INTEROP_CORE_COUNTERS_H_
#define TF_INTEROP_CORE_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

namespace tf_interop {

// A table of reasons holds at most this many of one kind. What comes beyond is counted under
// "<kind>: other cases": reasons name convolutions and their sizes, and a long-running program with
// changing shapes has no end of them.
constexpr int kMostReasonsOfAKind = 32;

struct Counters {
  int64_t stages_run = 0;
  // How many filters that are held were transformed so that launches need not do it.
  int64_t filters_transformed = 0;
  // How many stages were captured as CUDA graphs, and how many calls replayed one.
  int64_t stages_captured = 0;
  int64_t stages_replayed = 0;
  // How often something other than the plan's choice ran, by reason.
  std::map<std::string, int64_t> fallbacks;
  // How often lanes ran without the stream priorities and SM counts that they ask for, likewise.
  std::map<std::string, int64_t> refused_lane_options;
};

struct DeviceCounts;

// A device by its name, such as "GPU:0", found once so that counting for it needs no look-up.
class CountedDevice {
 public:
  CountedDevice(const std::string& name);  // NOLINT: the same in short
  CountedDevice(const char* name) : CountedDevice(std::string(name)) {}  // NOLINT

 private:
  friend class CountingFor;
  DeviceCounts* counts_;
};

// While it lives, what its thread counts is counted for one device. Without one, for the device "".
class CountingFor {
 public:
  explicit CountingFor(CountedDevice device);
  ~CountingFor();
  CountingFor(const CountingFor&) = delete;
  CountingFor& operator=(const CountingFor&) = delete;

 private:
  DeviceCounts* const outer_;
};

// All are thread-safe. The first four take no lock: every call of a stage counts itself.
void CountStageRun();
void CountFilterTransformation();
void CountStageCapture();
void CountStageReplay();
// The reason is `kind`, with `detail` after it if there is one.
void CountFallback(const std::string& kind, const std::string& detail = "");
void CountRefusedLaneOptions(const std::string& reason);

// Of every device for which something was counted.
std::map<std::string, Counters> ReadCountersByDevice();

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_COUNTERS_H_

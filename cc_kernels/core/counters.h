// What stages did in this process, for the user's status report.
#ifndef TF_INTEROP_CORE_COUNTERS_H_
#define TF_INTEROP_CORE_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

namespace tf_interop {

struct Counters {
  int64_t stages_run = 0;
  // How many constant filters were transformed so that launches need not do it.
  int64_t filters_transformed = 0;
  // How often something other than the plan's choice ran, by reason. Reasons past a fixed number
  // are counted together.
  std::map<std::string, int64_t> fallbacks;
  // How often lanes ran without the stream priorities and SM counts that they ask for, likewise.
  std::map<std::string, int64_t> refused_lane_options;
};

// All are thread-safe.
void CountStageRun();
void CountFilterTransformation();
void CountFallback(const std::string& reason);
void CountRefusedLaneOptions(const std::string& reason);
Counters ReadCounters();

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_COUNTERS_H_

// What was counted for all devices together.
#ifndef TF_INTEROP_TESTS_CC_ALL_COUNTERS_H_
#define TF_INTEROP_TESTS_CC_ALL_COUNTERS_H_

#include "cc_kernels/core/counters.h"

namespace tf_interop {

inline Counters ReadCounters() {
  Counters all;
  for (const auto& [device, counts] : ReadCountersByDevice()) {
    all.stages_run += counts.stages_run;
    all.filters_transformed += counts.filters_transformed;
    for (const auto& [reason, count] : counts.fallbacks) all.fallbacks[reason] += count;
    for (const auto& [reason, count] : counts.refused_lane_options) {
      all.refused_lane_options[reason] += count;
    }
  }
  return all;
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_ALL_COUNTERS_H_

// Controls of the stand-in for libcupti.
//
// While tracing is on, a flush delivers the test's records in buffers that it requests by callback,
// as CUPTI does. Tracing cannot be turned on without callbacks.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUPTI_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUPTI_H_

#include <cupti.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tf_interop {

struct FakeCuptiSwitches {
  std::vector<CUpti_ActivityKernel9> records;
  // Depends on CUPTI's version; at least the size of CUpti_ActivityKernel9.
  size_t record_bytes = sizeof(CUpti_ActivityKernel9);
  size_t dropped = 0;                          // records
  std::map<std::string, CUptiResult> results;  // of calls that fail
  bool has_no_text = false;                    // for results
};
FakeCuptiSwitches& FakeCupti();

// Attached from the first call until it is finalized, which forgets the callbacks.
bool FakeCuptiIsAttached();

bool FakeCuptiIsEnabled();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUPTI_H_

// Controls of the stand-in for libcupti that tests load in its place.
//
// While its tracing is on, flushing hands over the records that the test has listed, in buffers
// that it asks of its user as CUPTI does. CUPTI has been given callbacks before it is turned on, or
// fails.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUPTI_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUPTI_H_

#include <cupti.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tf_interop {

struct FakeCuptiSwitches {
  // What a trace finds; times and kind are the record's own.
  std::vector<CUpti_ActivityKernel9> records;
  // Bytes of a record, as versions of CUPTI differ; at least those of CUpti_ActivityKernel9.
  size_t record_bytes = sizeof(CUpti_ActivityKernel9);
  // How many records CUPTI says it had to drop.
  size_t dropped = 0;
  // What calls return in place of success, by their names.
  std::map<std::string, CUptiResult> results;
  // Has no text for a result.
  bool has_no_text = false;
};
FakeCuptiSwitches& FakeCupti();

// Whether it is attached to the process: from the first call until it is finalized. It has
// forgotten its callbacks then.
bool FakeCuptiIsAttached();

// Whether tracing is on.
bool FakeCuptiIsEnabled();

// Buffers that have been handed over.
int FakeCuptiBuffers();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUPTI_H_

// Controls of the stand-in for libcudnn.so.9 that tests load instead.
//
// It is the real cuDNN except for the work that needs a GPU. From 9.8 on cuDNN accepts a device's
// properties instead of a handle, so its graphs, heuristics, engines, knobs and plans are those for
// that GPU. Executions are computed on the host, on the streams of the stand-in for libcuda, from
// the operation graph that cuDNN has accepted. Workspaces of the legacy API are invented, because
// cuDNN needs a real handle to tell them.
//
// The real library is TF_INTEROP_REAL_CUDNN, or else the one that scripts/test_core.sh installs.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_

#include <cudnn.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <string>

namespace tf_interop {

// False if there is no real library, and thus no stand-in either.
bool FakeCudnnIsThere();

struct FakeCudnnSwitches {
  // The file in devices/ with the properties of the GPU. TF_INTEROP_FAKE_CUDNN_DEVICE overrides the
  // default.
  std::string device = "h200";
  // The engines, by index in the graph, that are refused when a plan is finalized, and those whose
  // plans fail when they are executed.
  std::set<int64_t> unsupported_engines, engines_failing_execution;
  // Engines that spoil a capture, as an allocation would.
  std::set<int64_t> engines_that_spoil_captures;
  // The names of legacy algorithms that no convolution can run.
  std::set<std::string> unsupported_legacy;
  bool fail_plan_allocation = false;
  bool knows_workspaces = true;  // else plans report a workspace of -1
  bool fail_execution = false;
  bool fail_handle = false;
  // Finalizing a plan takes this much longer.
  int plan_delay_us = 0;
};
FakeCudnnSwitches& FakeCudnn();

struct FakeCudnnCounters {
  std::atomic<int> plans_finalized{0};
  std::atomic<int> copies{0};
  std::atomic<int> executions{0};        // of plans
  std::atomic<int> live_descriptors{0};  // of the graph API
  // Descriptors that were destroyed while no context was current on the thread.
  std::atomic<int> destroyed_outside_contexts{0};
  // From the last request to the legacy API.
  std::atomic<cudnnMathType_t> last_legacy_math_type{CUDNN_DEFAULT_MATH};
  std::atomic<const char*> last_legacy_name{""};
  std::atomic<int> handles_asked{0}, handles_made{0};
  // The number of times that two threads used a handle or a plan at once.
  std::atomic<int> races{0};
};
FakeCudnnCounters& FakeCudnnCounts();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_

// Controls of the stand-in for libcudnn.so.9 that tests load in its place.
//
// It is the real cuDNN but for what needs a GPU. From 9.8 on cuDNN takes the properties of a device
// in place of a handle, so that its graphs, heuristics, engines, knobs and plans are those that it
// has on the GPU of these properties. What is executed is computed on the host, on the streams of
// the stand-in for libcuda, from the operation graph that cuDNN has accepted. Workspaces of the
// legacy API are invented, as cuDNN tells them to a real handle only.
//
// The real library is the one that scripts/test_core.sh installs, or that of TF_INTEROP_REAL_CUDNN.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_

#include <cudnn.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <string>

namespace tf_interop {

// False where there is no real library, and so no stand-in either.
bool FakeCudnnIsThere();

struct FakeCudnnSwitches {
  // The file in devices/ that has the properties of the GPU; TF_INTEROP_FAKE_CUDNN_DEVICE, if set,
  // is what it is at first.
  std::string device = "h200";
  // Engines that are refused when a plan of them is finalized, and those whose plans fail when they
  // are executed; by index in the graph.
  std::set<int64_t> unsupported_engines, engines_failing_execution;
  // Engines that do what a capture may not hold, as one does that allocates.
  std::set<int64_t> engines_that_spoil_captures;
  // Legacy algorithms, by name, that no convolution can run.
  std::set<std::string> unsupported_legacy;
  // Failures.
  bool fail_plan_allocation = false;
  bool fail_engine_allocation = false;
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
  // Those that were destroyed while no context was current on the thread.
  std::atomic<int> destroyed_outside_contexts{0};
  std::atomic<cudnnMathType_t> last_legacy_math_type{CUDNN_DEFAULT_MATH};
  std::atomic<int> handles_asked{0}, handles_made{0};
  // Times that a handle, or a plan, was found in use by two threads at once.
  std::atomic<int> races{0};
};
FakeCudnnCounters& FakeCudnnCounts();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_

// Controls of the stand-in for libcudnn.so.9 that tests load in its place.
//
// Its descriptors check attribute types, counts and states as cuDNN's documentation states them,
// and its plans compute what their graphs say, on the streams of the stand-in for libcuda.
//
// Every graph has the same engines. Knobs are written with the value that they have by themselves
// and their range.
//
//   index  proposed by  workspace  knobs                             notes         SM-count target
//   3      B            1 MiB      2: 7 of 0..1000, 14: 3 of 1..7/2  tensor cores  yes
//   1      B, A         4 KiB      2: 5 of 0..9                      -             yes
//   2      A            1 KiB      -                                 -             no
//   0      fallback     none       -                                 -             no
//   4      nobody       512 B      -                                 converts      no
//   5      nobody; for another GPU
//
// Legacy algorithms take all that cuDNN's do by their form; those by FFT take NCHW alone.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_

#include <cudnn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

namespace tf_interop {

struct FakeCudnnSwitches {
  // What no engine supports, found out when a plan is finalized.
  std::set<int64_t> unsupported_engines;
  bool no_asymmetric_padding = false;
  bool no_nhwc = false;
  // What is found out when an operation graph is finalized.
  bool no_fused_convolution = false;
  bool no_pointwise_graph = false;
  // Legacy algorithms, by name, that no convolution can run.
  std::set<std::string> unsupported_legacy;
  // Values that knobs have but that a configuration is refused for.
  std::set<int64_t> unsupported_knob_values;
  // Heuristics have nothing for graphs of so many operations or more, unless 0.
  size_t no_proposals_from_operations = 0;
  // Failures.
  bool fail_plan_allocation = false;
  bool fail_engine_allocation = false;
  bool fail_execution = false;
  // Engines whose plans are made, and fail when they are executed.
  std::set<int64_t> engines_failing_execution;
  bool fail_handle = false;
  // Engines that say that they may give other bits every time.
  std::set<int64_t> nondeterministic_engines;
  // A knob type that engines drop without a word, or -1.
  int64_t ignored_knob = -1;
  // Finalizing a plan takes this long.
  int plan_delay_us = 0;
};
FakeCudnnSwitches& FakeCudnn();

struct FakeCudnnCounters {
  std::atomic<int> plans_finalized{0};
  std::atomic<int> copies{0};
  std::atomic<int> executions{0};  // of plans
  std::atomic<int> live_descriptors{0};
  // Descriptors that were destroyed while no context was current on the thread.
  std::atomic<int> destroyed_outside_contexts{0};
  std::atomic<cudnnMathType_t> last_legacy_math_type{CUDNN_DEFAULT_MATH};
  // Times that a handle, or a plan, was found in use by two threads at once.
  std::atomic<int> handle_races{0};
  std::atomic<int> plan_races{0};
};
FakeCudnnCounters& FakeCudnnCounts();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_

// Controls of the stand-in for libcudnn.so.9 that tests load in its place.
//
// Its descriptors check attribute types, counts and states as cuDNN's documentation states them,
// and its plans compute what their graphs say, on the streams of the stand-in for libcuda.
//
// Every graph has the same engines:
//
//   index  proposed by      workspace  knobs   note
//   3      B                1 MiB      2, 14   tensor cores
//   1      B, A             4 KiB      2       -
//   2      A                1 KiB      -       -
//   0      fallback         none       -       -
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>

namespace tf_interop {

struct FakeCudnnSwitches {
  // What no engine supports, found out when a plan is finalized.
  std::set<int64_t> unsupported_engines;
  bool no_asymmetric_padding = false;
  bool no_nhwc = false;
  // What is found out when an operation graph is finalized.
  bool no_fused_convolution = false;
  bool no_pointwise_graph = false;
  // Failures.
  bool fail_plan_allocation = false;
  bool fail_execution = false;
  bool fail_handle = false;
  // A knob type that engines drop without a word, or -1.
  int64_t ignored_knob = -1;
  // Finalizing a plan takes this long.
  int plan_delay_us = 0;
};
FakeCudnnSwitches& FakeCudnn();

struct FakeCudnnCounters {
  std::atomic<int> plans_finalized{0};
  std::atomic<int> copies{0};
  std::atomic<int> live_descriptors{0};
  // Times that a handle, or a plan, was found in use by two threads at once.
  std::atomic<int> handle_races{0};
  std::atomic<int> plan_races{0};
};
FakeCudnnCounters& FakeCudnnCounts();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_H_

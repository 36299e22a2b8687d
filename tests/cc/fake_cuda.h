// Controls of the stand-in for libcuda.so.1 that tests load in its place.
//
// Memory is host memory. Every stream is a HostStream with a thread of its own, so that a missing
// wait shows as a wrong number, as it would on a GPU.
//
// Calls are refused with the wrong context current, and events on streams of another context than
// their own. A stream of a green context takes work and events while the primary context is
// current; a green context itself is never made current.
//
// Streams are captured by CUDA's rules: a capture ends on the thread and the stream where it began,
// with all streams joined that have come to it by events. In between this thread may not
// synchronize them, query their events, wait for events from outside, allocate or make anything.
// What breaks a rule is refused and spoils the capture. Three rules are stricter than CUDA's: a
// caller's stream is never captured, captures are local to their thread, and graphs run with the
// priorities of their nodes.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDA_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDA_H_

#include <cuda.h>

#include <atomic>
#include <functional>
#include <utility>

#include "cc_kernels/core/host/stream.h"

namespace tf_interop {

// The primary context of a new device. Contexts live until the process ends, but for green ones.
CUcontext FakeCudaMakeContext();

// For the role of the caller's stream.
CUstream FakeCudaMakeStream(CUcontext context);
void FakeCudaEnqueue(CUstream stream, std::function<void()> work);
HostStream* FakeCudaQueueOf(CUstream stream);
void FakeCudaSynchronize(CUstream stream);
int FakeCudaPriorityOf(CUstream stream);

// Null where none is current on this thread.
CUcontext FakeCudaCurrentContext();

// How many copies of rows (cuMemcpy2DAsync) the stream has been given.
int FakeCudaRowCopiesOn(CUstream stream);

// The first and the last SM of the green context that the stream belongs to; (0, -1) where it
// belongs to none.
std::pair<int, int> FakeCudaSmsOf(CUstream stream);

// For what may not be done during a capture: whether this thread captures, which it spoils.
bool FakeCudaSpoilsCapture();

// TF_INTEROP_FAKE_CUDNN_NO_WORK is for benchmarks of the host's own part: neither stand-in enqueues
// anything then, and there is nothing that an event could order.
bool FakeCudaComputesNothing();

struct FakeCudaSwitches {
  bool fail_memset = false;
  bool fail_copy = false;  // of rows
  bool fail_allocation = false;
  bool fail_module_loading = false;  // for lack of memory
  bool fail_instantiation = false;   // of graphs, likewise
  bool fail_graph_launch = false;
  // Before each piece of work, streams other than the callers' sleep this long.
  int lane_delay_us = 0;
  // The SMs of a device come in groups of `sm_granularity`, and those that make no whole group.
  int sm_count = 132;
  int sm_granularity = 8;
  // As on a GPU, or under MIG, that has no green contexts.
  bool no_green_contexts = false;
};
FakeCudaSwitches& FakeCuda();

struct FakeCudaObjects {
  // Made and not destroyed, but for the streams of callers; and device memory.
  std::atomic<int> live_green_contexts{0}, live_streams{0}, live_graphs{0}, live_allocations{0};
  // Graphs that were launched, and times that one was found in use by two threads at once.
  std::atomic<int> graph_launches{0}, graph_races{0};
  // Events that were recorded, and waits for one that streams were given; also in captures.
  std::atomic<int> records{0}, waits{0};
  // How many more can be made before memory is out.
  std::atomic<int> green_contexts_left{1 << 30}, streams_left{1 << 30};
};
FakeCudaObjects& FakeCudaCounts();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDA_H_

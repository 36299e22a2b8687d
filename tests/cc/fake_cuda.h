// Controls of the stand-in for libcuda.so.1.
//
// Memory is host memory. Every stream is a HostStream with its own thread, so that a missing wait
// leads to wrong results, as it would on a GPU.
//
// It refuses calls while the wrong context is current, and events on streams of another context.
//
// Captures follow CUDA's rules: a capture ends on the thread and the stream where it began, after
// all streams that joined it by events have been joined again. Until then its thread may not
// synchronize them, query their events, wait for events from outside or, unless its mode is
// relaxed, allocate or create anything. A call that breaks a rule is refused and spoils the
// capture. Three rules are stricter than CUDA's: a caller's stream is never captured, captures are
// local to their thread, and graphs run with the priorities of their nodes.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDA_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDA_H_

#include <cuda.h>

#include <atomic>
#include <functional>

#include "cc_kernels/core/host/stream.h"

namespace tf_interop {

// The primary context of a new device, which is never destroyed.
CUcontext FakeCudaMakeContext();

// A caller's stream.
CUstream FakeCudaMakeStream(CUcontext context);
void FakeCudaEnqueue(CUstream stream, std::function<void()> work);
HostStream* FakeCudaQueueOf(CUstream stream);
void FakeCudaSynchronize(CUstream stream);
int FakeCudaPriorityOf(CUstream stream);

// The context of this thread; may be null.
CUcontext FakeCudaCurrentContext();

// Counts copies of rows (cuMemcpy2DAsync) on the stream.
int FakeCudaRowCopiesOn(CUstream stream);

// Spoils this thread's capture. Returns whether there is one.
bool FakeCudaSpoilsCapture();

// Whether TF_INTEROP_FAKE_CUDNN_NO_WORK is set, for benchmarks of the host's own part: then no
// stand-in enqueues anything.
bool FakeCudaComputesNothing();

struct FakeCudaSwitches {
  bool fail_copy = false;  // of rows
  bool fail_allocation = false;
  bool fail_module_loading = false;  // out of memory
  bool fail_instantiation = false;   // of graphs: out of memory
  bool fail_graph_launch = false;
  // Streams other than the callers' sleep this long before each piece of work.
  int lane_delay_us = 0;
};
FakeCudaSwitches& FakeCuda();

struct FakeCudaObjects {
  // Callers' streams are not counted.
  std::atomic<int> live_streams{0}, live_graphs{0}, live_allocations{0};
  // `graph_races` counts uses of one graph by two threads at once.
  std::atomic<int> graph_launches{0}, graph_races{0};
  // These count events, including those in captures.
  std::atomic<int> records{0}, waits{0};
  // Creating more than these fails for lack of memory.
  std::atomic<int> streams_left{1 << 30};
};
FakeCudaObjects& FakeCudaCounts();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDA_H_

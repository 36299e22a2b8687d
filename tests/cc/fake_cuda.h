// Controls of the stand-in for libcuda.so.1 that tests load in its place.
//
// Memory is host memory. Every stream is a queue that a thread of its own works off in order, so
// that a missing wait shows as a wrong number, as it would on a GPU.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDA_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDA_H_

#include <cuda.h>

#include <atomic>
#include <functional>

namespace tf_interop {

// A context that streams can belong to. Contexts live until the process ends.
CUcontext FakeCudaMakeContext();

// A stream of `context`, for the role of the caller's stream.
CUstream FakeCudaMakeStream(CUcontext context);

// Puts `work` at the end of the stream's queue.
void FakeCudaEnqueue(CUstream stream, std::function<void()> work);

// Waits until the stream has done all that it has been given.
void FakeCudaSynchronize(CUstream stream);

// The context that is current on this thread, or null.
CUcontext FakeCudaCurrentContext();

struct FakeCudaSwitches {
  bool fail_memset = false;
  bool fail_allocation = false;
  // Before each piece of work, streams other than the callers' sleep this long.
  int lane_delay_us = 0;
};
FakeCudaSwitches& FakeCuda();

// Device memory that has been allocated and not been freed.
std::atomic<int>& FakeCudaLiveAllocations();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDA_H_

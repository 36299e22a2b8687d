// The backend for NVIDIA GPUs: CUDA streams through libcuda, convolutions through libcudnn, both
// opened when the first backend is asked for.
//
// Backends and their stream groups live until the process ends, and so do the plans that were used
// last, up to a limit: CUDA may be gone by the time that the process exits. Everything here is
// thread-safe. Calls may come with any CUDA context current, or none; it is left as it was.
//
// Lanes that ask for SMs of their own get streams of green contexts (sm_partition.h), which are
// made once for each list of counts.
#ifndef TF_INTEROP_CORE_CUDNN_BACKEND_H_
#define TF_INTEROP_CORE_CUDNN_BACKEND_H_

#include <cstddef>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/status.h"

struct CUstream_st;  // what CUstream points to

namespace tf_interop {

// How many outcomes of Prepare are kept. A program whose shapes change for ever would otherwise
// fill memory with plans. Many more than can be enqueued and not have run: cuDNN's plans are
// destroyed when nothing holds them any more, which must not be while they run.
inline constexpr size_t kMostPrepared = 4096;

// Finds the backend of the context that `caller` belongs to, made by the first call for it. Returns
// kUnavailable if there is no NVIDIA driver, no GPU, or no cuDNN of version 9.0 or newer.
Status FindCudnnBackend(CUstream_st* caller, Backend** backend);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_BACKEND_H_

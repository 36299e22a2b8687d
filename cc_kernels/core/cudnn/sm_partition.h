// The SMs of a device divided among the lanes of a stage, by CUDA's green contexts. This header
// needs no header of CUDA's.
//
// What the documentation of CUDA's driver API (12.5 to 13.0, "Green Contexts") says, and what is
// made of it:
//   - Sizes are rounded up to a granularity that depends on the GPU (2 SMs on compute capability 7,
//     4 or more in steps of 2 on 8, 8 on 9). It is read from the driver: the size of the groups of
//     a split for one SM.
//   - What a split gives cannot be split again. So the device is split once, into as many of the
//     smallest groups as there are, and a lane gets several of them: a descriptor may hold several
//     results of one split.
//   - A green context belongs to the device's primary context and shares its memory.
//   - It can be current on one thread at a time, and CUDA does not keep others out. See
//     ExecutionContext.
//   - An event is recorded on streams of the context that it was made in. Whether a green context
//     counts as another one than its primary context is not said; events and cuDNN handles are made
//     with the stream's own context current, and so is everything enqueued on it. Waiting is
//     allowed across contexts.
// None of it has been seen on a GPU yet.
#ifndef TF_INTEROP_CORE_CUDNN_SM_PARTITION_H_
#define TF_INTEROP_CORE_CUDNN_SM_PARTITION_H_

#include <memory>
#include <mutex>
#include <vector>

#include "cc_kernels/core/status.h"

struct CUctx_st;       // what CUcontext points to
struct CUgreenCtx_st;  // what CUgreenCtx points to
struct CUstream_st;    // what CUstream points to

namespace tf_interop {

struct CudaDriver;
struct ExecutionContext;

// Some SMs of a device, and a context whose streams run on these alone. Thread-safe, as far as
// everything that needs the context current takes its turn (see ExecutionContext). Streams have to
// be destroyed before.
class GreenContext {
 public:
  GreenContext(const CudaDriver& driver, CUgreenCtx_st* handle, CUctx_st* context, int sm_count)
      : driver_(driver), handle_(handle), context_(context), sm_count_(sm_count) {}
  ~GreenContext();
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  // Makes a stream that does not wait for the default stream.
  Status CreateStream(int priority, CUstream_st** stream);

  ExecutionContext execution();
  // As the driver reports it.
  int sm_count() const { return sm_count_; }

 private:
  const CudaDriver& driver_;
  CUgreenCtx_st* const handle_;
  CUctx_st* const context_;
  const int sm_count_;
  std::mutex turn_;
};

// The green contexts of the lanes of a stage. Immutable.
class SmPartition {
 public:
  // Divides the device of `context`, which must be its primary context, as StreamGroupOptions says.
  // Returns kUnsupported where the driver or the GPU has no green contexts, or where the counts do
  // not fit once they are rounded up; then nothing is left behind.
  static Status Create(const CudaDriver& driver, CUctx_st* context, const std::vector<int>& counts,
                       std::unique_ptr<SmPartition>* partition);

  // Lanes without a count have one green context together.
  GreenContext* of_lane(size_t lane) const { return of_lane_[lane]; }

 private:
  std::vector<std::unique_ptr<GreenContext>> green_contexts_;
  std::vector<GreenContext*> of_lane_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_SM_PARTITION_H_

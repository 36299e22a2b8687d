// The SMs of a device divided among the lanes of a stage, by CUDA's green contexts. This header
// needs no header of CUDA's.
//
// From CUDA's driver API (12.5 to 13.0, "Green Contexts"); none of it has been seen on a GPU yet:
//   - Sizes are rounded up to a granularity that depends on the GPU: the size of the groups of a
//     split for one SM.
//   - What a split gives cannot be split again. So the device is split once, into as many of the
//     smallest groups as there are, and a lane gets several of them.
//   - A green context shares the memory of the device's primary context. Its streams take work
//     while the primary context is current, so it is never made current itself.
#ifndef TF_INTEROP_CORE_CUDNN_SM_PARTITION_H_
#define TF_INTEROP_CORE_CUDNN_SM_PARTITION_H_

#include <memory>
#include <vector>

#include "cc_kernels/core/status.h"

struct CUctx_st;       // what CUcontext points to
struct CUgreenCtx_st;  // what CUgreenCtx points to
struct CUstream_st;    // what CUstream points to

namespace tf_interop {

struct CudaDriver;

// Some SMs of a device, for streams that run on these alone. Immutable and thread-safe. Streams
// have to be destroyed before.
class GreenContext {
 public:
  GreenContext(const CudaDriver& driver, CUgreenCtx_st* handle, int sm_count)
      : driver_(driver), handle_(handle), sm_count_(sm_count) {}
  ~GreenContext();
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  // Makes a stream that does not wait for the default stream. The primary context must be current.
  Status CreateStream(int priority, CUstream_st** stream);

  // As the driver reports it.
  int sm_count() const { return sm_count_; }

 private:
  const CudaDriver& driver_;
  CUgreenCtx_st* const handle_;
  const int sm_count_;
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

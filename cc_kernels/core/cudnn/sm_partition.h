// A device's SMs divided among the lanes of a stage by CUDA's green contexts.
//
// From the documentation of CUDA's driver API (12.5 to 13.0, "Green Contexts"); none of it has been
// confirmed on a GPU yet:
//   - Sizes are rounded up to a granularity that depends on the GPU: the size of the groups that a
//     split for one SM returns.
//   - The result of a split cannot be split again. So the device is split once, into as many of the
//     smallest groups as possible, and a lane gets several of them.
//   - A green context shares the memory of the device's primary context. Its streams accept work
//     while the primary context is current, so it is never made current itself.
#ifndef TF_INTEROP_CORE_CUDNN_SM_PARTITION_H_
#define TF_INTEROP_CORE_CUDNN_SM_PARTITION_H_

#include <memory>
#include <vector>

#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Some SMs of a device, for streams that run only there. Immutable and thread-safe. Must outlive
// its streams.
class GreenContext {
 public:
  GreenContext(const CudaDriver& driver, CUgreenCtx handle, int sm_count)
      : driver_(driver), handle_(handle), sm_count_(sm_count) {}
  ~GreenContext() { driver_.cuGreenCtxDestroy(handle_); }
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  CUgreenCtx get() const { return handle_; }

  // As the driver reports it.
  int sm_count() const { return sm_count_; }

 private:
  const CudaDriver& driver_;
  const CUgreenCtx handle_;
  const int sm_count_;
};

// The green contexts of a stage's lanes. Lanes without a count share one.
struct SmPartition {
  std::vector<std::unique_ptr<GreenContext>> green_contexts;
  std::vector<GreenContext*> of_lane;
};

// Divides the device of `context`, which must be its primary context, as StreamGroupOptions
// describes. Returns kUnsupported, and creates nothing, if the driver or the GPU has no green
// contexts, or if the rounded counts do not fit.
Status MakeSmPartition(const CudaDriver& driver, CUcontext context, const std::vector<int>& counts,
                       SmPartition* partition);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_SM_PARTITION_H_

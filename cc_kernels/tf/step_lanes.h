// Runs steps that do not read each other's results at the same time.
#ifndef TF_INTEROP_TF_STEP_LANES_H_
#define TF_INTEROP_TF_STEP_LANES_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc_kernels/core/ready_steps.h"
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/steps.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_interop {

// As TensorFlow's executor runs the nodes of a graph: on threads of its pool for operations. `plan`
// has no wide step, and lives as long as the op's kernel.
absl::Status RunByExecutor(tensorflow::OpKernelContext* context, const Steps& steps,
                           const LanePlan& plan, StepsRun* run);

// On the group of a device with several cores, as the plan says. `primitive_types` are those of the
// steps' kernels (primitive_cache.h).
absl::Status RunByGroup(const tensorflow::OpKernelContext& context, const Steps& steps,
                        const LanePlan& plan,
                        absl::Span<const tensorflow::DataType> primitive_types, NarrowDevice* all,
                        StepsRun* run);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STEP_LANES_H_

// TensorFlow's own kernels for nodes that are steps of our ops.
//
// With them a step computes what its node would compute in the graph, to the bit and as fast. On a
// CPU with oneDNN this needs other names: TensorFlow's last graph optimization
// (tensorflow/core/common_runtime/mkl_layout_pass.cc) renames nodes to the ops of oneDNN's kernels,
// but it does not see steps.
#ifndef TF_INTEROP_TF_STOCK_KERNEL_H_
#define TF_INTEROP_TF_STOCK_KERNEL_H_

#include <memory>

#include "absl/status/status.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Gives a node the op and attributes of oneDNN's kernel if TensorFlow would run that kernel on a
// CPU. The new op has the same inputs, and may have more outputs after the old ones.
//
// `has_constant_filter` says that no call changes the node's second input. A kernel for which that
// is a filter then transforms it once and keeps it.
//
// TensorFlow also merges some pairs of nodes, which run as two steps: Pad and Conv2D or
// _FusedConv2D, Conv2D and BiasAdd, Conv2DBackpropFilter and BiasAddGrad. MaxPoolGrad and
// MaxPool3DGrad keep TensorFlow's kernel, because oneDNN's reads a workspace that the forward op
// writes.
void RenameForOneDnn(bool has_constant_filter, tensorflow::NodeDef* node);

// Makes the kernel that TensorFlow would run for `node` on `device`.
absl::Status MakeStockKernel(tensorflow::DeviceBase* device, int graph_def_version,
                             bool has_constant_filter, const tensorflow::NodeDef& node,
                             std::unique_ptr<tensorflow::OpKernel>* kernel);

// The parameters of a call of our op, for the kernel of one of its steps. That kernel, its inputs
// and their attributes are still to be set.
tensorflow::OpKernelContext::Params StepParams(const tensorflow::OpKernelContext& context);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STOCK_KERNEL_H_

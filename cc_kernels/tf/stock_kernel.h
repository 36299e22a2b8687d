// TensorFlow's own kernels for nodes that are steps of our ops.
//
// With them a step computes the same bits as its node would in the graph, as fast. On a CPU with
// oneDNN this needs other names: TensorFlow's last graph optimization
// (tensorflow/core/common_runtime/mkl_layout_pass.cc) renames nodes to the ops of oneDNN's kernels,
// but it does not see steps.
#ifndef TF_INTEROP_TF_STOCK_KERNEL_H_
#define TF_INTEROP_TF_STOCK_KERNEL_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Makes the kernel that TensorFlow would run for `node` on `device`. It has the node's inputs, and
// may have more outputs after the node's.
//
// Where TensorFlow runs without oneDNN, that is oneDNN's kernel for fused ops that have no other.
//
// `has_constant_filter` means that no call changes the node's second input. oneDNN's kernels with a
// filter there then transform it once and keep it.
absl::Status MakeStockKernel(tensorflow::DeviceBase* device, int graph_def_version,
                             bool has_constant_filter, const tensorflow::NodeDef& node,
                             std::unique_ptr<tensorflow::OpKernel>* kernel);

// Makes oneDNN's kernel for `node` on a CPU, even where TensorFlow runs without oneDNN. An error if
// there is none.
absl::Status MakeOneDnnKernel(tensorflow::DeviceBase* device, int graph_def_version,
                              bool has_constant_filter, const tensorflow::NodeDef& node,
                              std::unique_ptr<tensorflow::OpKernel>* kernel);

// The parameters of a call of our op, for the kernel of one of its steps. The caller sets that
// kernel, its inputs and their attributes.
tensorflow::OpKernelContext::Params StepParams(const tensorflow::OpKernelContext& context);

// The name of an op's device, for example "GPU:0".
std::string ShortDeviceName(const tensorflow::OpKernelConstruction* context);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STOCK_KERNEL_H_

// Which kernel TensorFlow would run for a node on a CPU.
//
// Where oneDNN is on, a graph optimization of TensorFlow that comes after all others
// (tensorflow/core/common_runtime/mkl_layout_pass.cc) renames nodes, and so they get oneDNN's
// kernels. It does not see nodes that are inside an op of ours, as steps.
#ifndef TF_INTEROP_TF_ONEDNN_NAMES_H_
#define TF_INTEROP_TF_ONEDNN_NAMES_H_

#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_interop {

// Gives the node the op and attributes by which oneDNN's kernel for it goes, if TensorFlow would
// run that kernel; otherwise the node stays as it is. The new op has the old one's inputs, and may
// have further outputs after the old one's.
//
// `has_constant_filter` says that no call changes the node's second input: a kernel that takes it
// for a filter then transforms it once and keeps it.
//
// TensorFlow also merges some nodes into one. Steps run as the two that they were: Pad then Conv2D
// or _FusedConv2D, Conv2D then BiasAdd, Conv2DBackpropFilter and BiasAddGrad. MaxPoolGrad and
// MaxPool3DGrad run as TensorFlow's own, because oneDNN's read a workspace that the forward op
// writes.
void RenameForOneDnn(bool has_constant_filter, tensorflow::NodeDef* node);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_ONEDNN_NAMES_H_

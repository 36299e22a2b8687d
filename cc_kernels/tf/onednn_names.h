// Which kernel TensorFlow would run for a node on a CPU.
//
// Where oneDNN is on, a graph optimization of TensorFlow that comes after all others
// (MklLayoutRewritePass) renames nodes so that they get oneDNN's kernels. Nodes that stand inside
// an op of ours, as steps, it does not see.
#ifndef TF_INTEROP_TF_ONEDNN_NAMES_H_
#define TF_INTEROP_TF_ONEDNN_NAMES_H_

#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_interop {

// Gives the node the op and attributes by which oneDNN's kernel for it goes, where TensorFlow would
// run that kernel; otherwise the node stays as it is. The op's outputs come first among those of
// oneDNN's kernel, which may have further ones.
//
// A kernel of a node with a constant filter (the second input) transforms it once and keeps it.
void RenameForOneDnn(bool has_constant_filter, tensorflow::NodeDef* node);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_ONEDNN_NAMES_H_

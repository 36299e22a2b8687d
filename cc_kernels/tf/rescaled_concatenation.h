// A concatenation of channels and the normalization after it in one pass over memory.
//
// Each layer of a DenseNet normalizes the results of all layers before it. TensorFlow copies them
// side by side again for each layer. Here the normalization reads them where they are:
//
//     before                                             after
//     a ─┐                                               a ─┐
//     b ─┴ ConcatV2 ── _FusedDepthwiseConv2dNative       b ─┴ TfInterop>RescaledConcatenation
//
// The depthwise convolution is one that graph/rescale.py makes: its filter is one pixel.
#ifndef TF_INTEROP_TF_RESCALED_CONCATENATION_H_
#define TF_INTEROP_TF_RESCALED_CONCATENATION_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_interop {

// Joins such float32 steps if nothing else needs the concatenation. Operands and `results` then
// name the steps that are left. Whatever is not well-formed stays as it is.
void JoinConcatenations(std::vector<tensorflow::NodeDef>* steps, std::vector<std::string>* results);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_RESCALED_CONCATENATION_H_
